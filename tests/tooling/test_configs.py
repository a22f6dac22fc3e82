"""configs/: written from their table, planned as they say, and read by vLLM's own parser."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.deployments import DEPLOYMENTS, MODELS, OURS
from tools.write_configs import name_of, settings_of, written
from vllm_megamoe.plan.read_config.reader import is_known

ASKED = {
    "Qwen3-30B-A3B",
    "Qwen3-235B-A22B",
    "Qwen3.5-397B-A17B",
    "Qwen3.6-35B-A3B",
    "DeepSeek-V3.1",
    "DeepSeek-V3.2",
    "DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro",
    "Kimi-K2.5",
    "Kimi-K3",
    "GLM-5",
    "GLM-5.2",
    "GLM-5.3",
    "MiniMax-M2.7",
    "MiniMax-M3",
    "Step-3.7",
}

# vLLM's own parser, over every file, in one process: what it makes of each goes to standard output.
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
found = {}
for place in sys.argv[1:]:
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", place])
    keys = "model", "quantization", "tensor_parallel_size", "data_parallel_size", "enable_expert_parallel"
    keys += "max_model_len", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "speculative_config"
    transfer = args.kv_transfer_config
    role = getattr(transfer, "kv_role", None) or (transfer or {}).get("kv_role") if transfer else None
    found[place] = {key: getattr(args, key) for key in keys} | {"role": role}
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def files(repository: Path) -> dict[str, Path]:
    return {place.stem: place for place in sorted((repository / "configs").glob("*.yaml"))}


def test_every_model_is_there_on_every_product_that_runs_it(files: dict[str, Path]) -> None:
    assert set(MODELS) == ASKED
    assert set(files) <= {name_of(row) for row in DEPLOYMENTS}
    for model in ASKED - {"Step-3.7"}:
        assert {f"{model.lower()}-{product}" for product in ("a2", "a3", "950")} <= set(files), model
    assert {name_of(row) for row in DEPLOYMENTS} >= OURS


NEWER = {
    "GLM-5.3": "GlmMoeDsaForCausalLM",
    "GLM-5.3-Flash": "Glm5NextForCausalLM",
    "DeepSeek-V4.1-Flash": "DeepseekV41ForCausalLM",
    "Qwen3.8": "Qwen4ExpForCausalLM",
    "MiniMax-M3.1": "MiniMaxM3SparseForConditionalGeneration",
    "Hy4": "HYV4ForCausalLM",
    "Dots3": "Dots3NoteForCausalLM",
    "Step-3.7": "Step3p7ForConditionalGeneration",
}
"""Newer models -> the class that vLLM 0.32 has for them."""


@pytest.mark.parametrize("model", NEWER)
def test_newer_families_are_in_the_tables(model: str) -> None:
    assert is_known({"architectures": [NEWER[model]]})


def test_both_sides_of_a_split_are_there(files: dict[str, Path]) -> None:
    sides = {name.rsplit("-", 1)[0] for name in files if name.endswith("prefill")}
    assert sides == {name.rsplit("-", 1)[0] for name in files if name.endswith("decode")}
    assert len(sides) >= 8
    assert sides <= set(files)


def test_each_says_what_its_row_says(files: dict[str, Path]) -> None:
    for row in DEPLOYMENTS:
        if name_of(row) in files:
            assert yaml.safe_load(files[name_of(row)].read_text()) == settings_of(row)


@pytest.mark.full
def test_they_are_what_the_tool_writes_and_plans(shared_dir: Path, repository: Path) -> None:
    made = written(shared_dir / "model_configs")
    assert {place.name for place in made} == {p.name for p in (repository / "configs").glob("*.yaml")} | {"configs.md"}
    for place, text in made.items():
        assert place.read_text() == text, f"{place.name}: run `make docs`"


@pytest.mark.full
def test_vllms_own_parser_reads_each(files: dict[str, Path]) -> None:
    command = [sys.executable, "-c", PARSE, *map(str, files.values())]
    variables = os.environ | {"VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    found = json.loads(line.removeprefix("FOUND"))
    for row in DEPLOYMENTS:
        if name_of(row) not in files:
            continue
        read = found[str(files[name_of(row)])]
        assert (read["model"], read["quantization"]) == (f"./{row.checkpoint}", "megamoe")
        assert (read["tensor_parallel_size"], read["data_parallel_size"]) == (row.tp, row.dp)
        assert read["enable_expert_parallel"] is True
        assert (read["max_model_len"], read["max_num_batched_tokens"]) == (row.length, row.tokens)
        assert (read["max_num_seqs"], read["gpu_memory_utilization"]) == (row.seqs, row.memory)
        assert (read["speculative_config"] or {}).get("method", "") == MODELS[row.model].speculation
        assert (read["role"] or "") == {"prefill": "kv_producer", "decode": "kv_consumer", "": ""}[row.role]
