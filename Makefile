# Every target that needs Python makes .venv first; a set-up that is whole costs a tenth of a second.

PYTHON ?= python3
VENV ?= .venv
CONTRACT_VENV ?= .venv-contract
TORCH210_VENV ?= .venv-2.10
SITE_VENV ?= .cache/venv-site
# More arguments for pytest or the demo: make test ARGS="-k layout", make demo ARGS="--keep"
ARGS ?=
# Checkouts of the operator's repository for `make contract`, PATH[,PATH]; read, never written.
OPERATOR ?=

# What of the suite runs on vLLM 0.30 too, with vLLM's own CPU platform in place of vllm-ascend.
# Not test_collected: vLLM 0.30 packs these small weights and empties them, so there is none to compare.
LANE_ON_0_30 := tests/lanes tests/engine/test_product.py --ignore=tests/lanes/cpu/test_collected.py

# What needs no vLLM, and so runs on the torch of a real host too.
WITHOUT_VLLM := tests/numerics tests/layout tests/experts tests/profiles tests/plan tests/simulator tests/layer tests/ops \
	tests/checkpoint tests/formats --ignore=tests/plan/read_config/test_tables.py

RUN := $(VENV)/bin/python
PYTEST := $(RUN) -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-torch210 contract lint docs site bench clean $(VENV)

help: ## list these targets
	@awk -F ':.*## ' '/^[a-zA-Z0-9_-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV) ## serve a small MoE model through the operator, ask it, compare it with vLLM's own MoE
	@$(RUN) -m vllm_megamoe.demo $(ARGS)

test: $(VENV) ## run the test suite (8 minutes at most on 2 cores)
	@$(PYTEST) -n auto -m "not full" $(ARGS)

test-full: $(VENV) ## run the long tests that `make test` leaves out, and new drawn examples (30 minutes more at most)
	@$(PYTEST) -n auto -m "full or hypothesis" --hypothesis-profile new $(ARGS)

test-torch210: ## run what needs no vLLM on torch 2.10, in an environment of its own (15 minutes at most)
	@$(PYTHON) -m tools.torch210_env --venv $(TORCH210_VENV)
	@$(TORCH210_VENV)/bin/python -m pytest -n auto -m "not full" $(WITHOUT_VLLM) $(ARGS)

contract: ## run vllm-ascend's real Python over the simulator, in an environment of its own (15 minutes at most)
	@$(PYTHON) -m tools.contract_env --venv $(CONTRACT_VENV)
	@$(CONTRACT_VENV)/bin/python -m pytest -p no:asyncio tests/contract --operator "$(OPERATOR)" $(ARGS)
	@VLLM_PLUGINS=megamoe $(CONTRACT_VENV)/bin/python -m pytest -p no:asyncio -m "not full" $(LANE_ON_0_30) $(ARGS)

lint: $(VENV) ## run ruff and mypy
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

docs: $(VENV) ## write the pages that come from data, and check every link between the documents
	@$(RUN) -m tools.write_limits
	@$(RUN) -m tools.write_models
	@$(RUN) -m tools.write_checkpoints
	@$(RUN) -m tools.write_plan
	@$(RUN) -m tools.write_options
	@$(RUN) -m tools.write_configs
	@$(RUN) -m tools.write_compatibility
	@$(RUN) -m tools.check_links

site: ## build the documentation as a site into .cache/site, in an environment of its own; a broken link fails
	@test -x $(SITE_VENV)/bin/mkdocs || { $(PYTHON) -m venv $(SITE_VENV) && $(SITE_VENV)/bin/pip install -q "mkdocs-material>=9.5"; }
	@$(SITE_VENV)/bin/mkdocs build --quiet --strict -f tools/docs_site/mkdocs.yml
	@echo "docs: .cache/site/index.html"

bench: $(VENV) ## measure beside vLLM's own and write docs/benchmarks.md and docs/scale.md (10 minutes; ARGS=--busy where others use the machine)
	@PYTHONPATH=tests $(RUN) -m bench.bench_operator --write docs/benchmarks.md $(ARGS)
	@PYTHONPATH=tests $(RUN) -m bench.bench_served --write docs/benchmarks.md
	@PYTHONPATH=tests $(RUN) -m bench.bench_exchange --write docs/benchmarks.md
	@PYTHONPATH=tests $(RUN) -m bench.bench_around --contract $(CONTRACT_VENV)/bin/python --write docs/benchmarks.md
	@PYTHONPATH=tests $(RUN) -m bench.bench_start --eager --write docs/benchmarks.md
	@PYTHONPATH=tests $(RUN) -m bench.bench_loading --write docs/benchmarks.md
	@PYTHONPATH=tests $(RUN) -m bench.bench_convert --write docs/benchmarks.md
	@PYTHONPATH=tests $(RUN) -m bench.scale --write docs/scale.md > /dev/null

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) $(CONTRACT_VENV) $(TORCH210_VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

$(VENV):
	@$(PYTHON) -m tools.setup_env --venv $(VENV)
