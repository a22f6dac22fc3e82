"""What becomes of a plan on its way from the config stage to a layer: cases in one process, one line of JSON each.

python carry.py CONFIGS.json FOLDER

CONFIGS.json maps names to the content of a config.json. Prints `CASE {name: outcome}`; an exception is the outcome of
its case.
"""

import copy
import json
import logging
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from build import config_of, inside, whole
from stand_ins import install
from vllm.config import set_current_vllm_config
from vllm.config.utils import replace as derive
from vllm.engine.arg_utils import EngineArgs

from vllm_megamoe.lanes import startup
from vllm_megamoe.plan import registry
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config import reader
from vllm_megamoe.plan.read_config.family import Family

PLACE = Path(sys.argv[2])
CONFIGS = json.loads(Path(sys.argv[1]).read_text())
CASES: dict[str, Callable[[], Any]] = {}

MIXTRAL = "MixtralForCausalLM"


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def folder(model: str) -> Path:
    place = PLACE / model
    if not place.exists():
        place.mkdir()
        (place / "config.json").write_text(json.dumps(CONFIGS[model]))
    return place


def made(model: str, drafts: bool = False) -> Any:
    return config_of(folder(model), drafts, "megamoe")


def methods(vllm_config: Any, drafts: bool = False) -> list[Any]:
    """Of every MoE layer, built and looked at with its runner."""
    with inside(vllm_config, PLACE / "rendezvous"):
        found = [runner.routed_experts.quant_method for runner in whole(vllm_config, drafts)]
    for method in found:
        method.complete_plan()
    return found


def sent(vllm_config: Any) -> Any:
    """As a worker gets it: nothing is registered there that the user's own process has taught."""
    registry._TAUGHT.clear()
    return pickle.loads(pickle.dumps(vllm_config))


def teach(architecture: str, change: Callable[[tuple[MoeFacts, ...]], Any]) -> None:
    """Teach an architecture what its own table row says, changed."""
    right = reader.read_layers(CONFIGS[architecture_names()[architecture]])
    registry.register_model_facts(architecture, lambda config: change(right))


def architecture_names() -> dict[str, str]:
    return {config["architectures"][0]: name for name, config in CONFIGS.items()}


@case
def ways_to_travel() -> dict[str, bool]:
    """Every way in which vLLM hands its config on; equal to the plan that was made, and not empty."""
    first = made("DeepSeek-V3", drafts=True)
    plan = first.quant_config.carried
    with set_current_vllm_config(first):
        ways = {
            "pickle": pickle.loads(pickle.dumps(first)),
            "cloudpickle": cloudpickle.loads(cloudpickle.dumps(first)),
            "deepcopy": copy.deepcopy(first),
            "derived, as for MTP": derive(first, attention_config=first.attention_config),
            "derived with a draft's quantisation": derive(
                first, quant_config=None, model_config=first.speculative_config.draft_model_config
            ),
            "a part of a model": first.with_hf_config(
                first.model_config.hf_config, architectures=["DeepseekV3ForCausalLM"]
            ),
        }
    return {
        "planned": len(plan.plan.layers) > 0,
        **{way: config.quant_config.carried == plan for way, config in ways.items()},
    }


@case
def planned_once() -> int:
    """How often the plan of a model is made, from the user's process to its last layer."""
    calls = []
    original = startup.make_plan
    startup.make_plan = lambda *a, **k: calls.append(1) or original(*a, **k)
    try:
        first = made("DeepSeek-V3", drafts=True)
        with set_current_vllm_config(first):
            derive(first, quant_config=None, model_config=first.speculative_config.draft_model_config)
        methods(sent(first), drafts=True)
    finally:
        startup.make_plan = original
    return len(calls)


@case
def layers_by_speculation() -> dict[str, list[str]]:
    """Names of the planned layers of a checkpoint with one MTP layer, by what speculation loads of it."""
    found = {}
    for name, speculative in {
        "none": None,
        "ngram": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2},
        "mtp": {"method": "mtp", "num_speculative_tokens": 1},
    }.items():
        config = EngineArgs(
            model=str(folder("DeepSeek-V3")),
            skip_tokenizer_init=True,
            max_model_len=128,
            dtype="bfloat16",
            quantization="megamoe",
            speculative_config=speculative,
        ).create_engine_config()
        found[name] = [layer.facts.name for layer in config.quant_config.carried.plan.layers]
    return found


@case
def platform_raises_the_rows() -> list[int]:
    """Rows of the plan before and after the platform has raised max_num_batched_tokens (MLA on a CPU without AMX)."""
    config = made("Mixtral")
    before = config.quant_config.carried
    config.scheduler_config.max_num_batched_tokens += 1000
    config.quant_config.carried = replace(before, shown=False)
    startup.after_platform(config)
    plans = [before.plan, config.quant_config.carried.plan]
    return [row for plan in plans for row in (plan.engine.max_num_batched_tokens, plan.layers[0].capacity.rows)]


@case
def taught_facts() -> list[dict[str, Any]]:
    """Whoever teaches a model may leave out its numbers; what reaches the layer shows where it came from."""
    teach(MIXTRAL, lambda right: [replace(facts, index=-1, model_hidden=0) for facts in right])
    return [asdict(method.plan.facts) for method in methods(sent(made("Mixtral")))]


@case
def taught_wrongly() -> None:
    teach(MIXTRAL, lambda right: [replace(facts, topk=2, intermediate_hidden=32) for facts in right])
    methods(sent(made("Mixtral")))


@case
def taught_too_few() -> None:
    teach(MIXTRAL, lambda right: right[:3])
    methods(sent(made("Mixtral")))


@case
def taught_without_shared_experts() -> None:
    """Seen only with the runner, and so before weights are turned into operands."""
    teach("Qwen2MoeForCausalLM", lambda right: [replace(facts, shared=None) for facts in right])
    methods(sent(made("Qwen2-MoE")))


@case
def another_engine() -> None:
    """The engine that runs has changed since the plan was made."""
    config = sent(made("Mixtral"))
    config.scheduler_config.max_num_batched_tokens += 1
    methods(config)


class Heard(logging.Handler):
    """Keeps what is logged at warning level and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def unknown(model: str, family: Family | None = None) -> dict[str, Any]:
    """Build a model whose architecture stands in no table: what is logged, and the facts that its layers run with."""
    heard = Heard()
    family_of, generic = reader.family_of, reader.generic
    reader.family_of = lambda *architectures: None
    logging.getLogger("vllm_megamoe").addHandler(heard)
    reader.generic = (lambda keys: family) if family else generic
    try:
        config = made(model)
        found = methods(sent(config))
    finally:
        reader.family_of, reader.generic = family_of, generic
        logging.getLogger("vllm_megamoe").removeHandler(heard)
    return {
        "planned": len(config.quant_config.carried.plan.layers),
        "facts": [asdict(method.plan.facts) for method in found],
        "heard": heard.lines,
    }


@case
def unknown_and_right() -> dict[str, Any]:
    return unknown("Qwen3-MoE")


@case
def unknown_and_wrong() -> dict[str, Any]:
    return unknown("Qwen3-MoE", Family((), intermediate=("hidden_size",)))


@case
def unknown_without_experts() -> dict[str, Any]:
    return unknown("Qwen3-MoE", Family((), num_experts=("no such key",)))


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    install()
    for name, function in CASES.items():
        registry._TAUGHT.clear()
        try:
            outcome: Any = function()
        except Exception as error:
            # Every way to end is an outcome here; the test decides which one is right.
            outcome = {"error": type(error).__name__, "message": str(error)}
        print("CASE " + json.dumps({name: outcome}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
