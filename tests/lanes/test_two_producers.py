"""The plan is made from config.json and carried to the layers: for every family that vLLM builds here, both agree.

One process builds all models on the meta device, from the same config.json content that the plan is made from: once
with a method of no weights to read each layer, and, where the plan holds, once with ours, as in a worker.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from lanes.live.tiny_configs import RELEASE, TINY

from vllm_megamoe.plan.read_config.reader import is_known, read_layers

SCRIPT = Path(__file__).parent / "live" / "build.py"

# What vLLM 0.32 itself rejects on a CPU, and its words.
NOT_BUILT = {
    "Nemotron-H": "is_act_and_mul=False is supported only for CUDA",
    "DeepSeek-V3.2": "Sparse Attention is not supported on CPU",
}

# Fields that one producer cannot see: `skips_reduction` follows from the parallel sizes, which no config.json has, and
# of `splits_rows` a layer shows what comes of it under its engine.
NOT_COMPARED = {"skips_reduction", "splits_rows"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the live producer read of each model, or how its construction ended."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "configs.json").write_text(json.dumps(TINY))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder / "configs.json"), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    lines = [json.loads(line.removeprefix("FACTS ")) for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    found = {name: result for line in lines for name, result in line.items()}
    assert set(found) == set(TINY), done.stderr[-3000:]
    return found


def compared(facts: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in facts.items() if key not in NOT_COMPARED}
    if RELEASE == "0.30":  # it holds Gemma-4's experts one level further down
        kept["name"] = kept["name"].replace(".moe.experts", ".experts")
        facts = facts | {"name": kept["name"]}
    # vLLM builds Step-3 without its first prefix.
    return {**kept, "name": f"model{facts['name']}" if facts["name"].startswith(".") else facts["name"]}


@pytest.mark.parametrize("model", [name for name in TINY if name not in NOT_BUILT])
def test_both_say_the_same(model: str, built: dict[str, Any]) -> None:
    assert "layers" in built[model], built[model]
    read = json.loads(json.dumps([asdict(layer) for layer in read_layers(TINY[model])]))
    from_config = [compared(layer) for layer in read]
    assert [compared(layer) for layer in built[model]["layers"]] == from_config
    assert from_config


@pytest.mark.parametrize("model", [name for name in TINY if name not in NOT_BUILT])
def test_families_that_split_their_rows(model: str, built: dict[str, Any]) -> None:
    """Where tensor and data parallelism are both on, by what the model's own code tells its MoE layers."""
    said = {layer.splits_rows for layer in read_layers(TINY[model])}
    if said <= {"always", "never"}:
        assert built[model]["splits_rows"] == [said == {"always"}]
    # Kimi-K3 asks the parallel sizes themselves, and DeepSeek-V4's files differ by platform.
    assert said <= {"always", "never"} or model in ("Kimi-K3", "DeepSeek-V4")


# Families that the operator has no activation or no place for: the config stage ends there.
REJECTED = {
    "gpt-oss": "experts carry biases",
    "Gemma-4": "activation 'gelu_tanh'",
    "Llama-4": "the router weight multiplies the expert's input",
}
# Their whole models cannot be built on a CPU, only a MoE block in another model's engine config.
BLOCKS_ALONE = ("Kimi-K3", "MiniMax-M3", "Hunyuan-4", "Ling-2.5", "Ling-3")


@pytest.mark.parametrize("model", [name for name in TINY if name not in NOT_BUILT])
def test_every_layer_finds_the_plan_that_was_made_for_it(model: str, built: dict[str, Any]) -> None:
    """The very plan of the config stage, after a pickle, and confirmed without and with the layer's runner."""
    carried = built[model]["carried"]
    if model in REJECTED:
        assert REJECTED[model] in carried
    elif model in BLOCKS_ALONE:
        assert carried == "a block alone"
    else:
        assert carried == [layer["name"] for layer in built[model]["layers"]]


@pytest.mark.parametrize("model", [name for name in TINY if name not in NOT_BUILT])
def test_a_layer_without_its_runner_shows_nothing_else(model: str, built: dict[str, Any]) -> None:
    """What a runner adds are the shared experts and a factor on the output: all else is seen before weights exist."""
    for bare, whole in zip(built[model]["bare"], built[model]["layers"], strict=True):
        on_output = {"routed_scaling_factor": 1.0, "scale_on_output": False} if whole["scale_on_output"] else {}
        assert bare == whole | {"shared": None} | on_output


@pytest.mark.parametrize("model", NOT_BUILT)
def test_what_vllm_does_not_build_is_still_so(model: str, built: dict[str, Any]) -> None:
    assert NOT_BUILT[model] in built[model]["error"]


@pytest.mark.parametrize("model", TINY)
def test_the_table_knows_each_of_them(model: str) -> None:
    assert is_known(TINY[model])


def test_special_values_are_in_use() -> None:
    """The agreement means something only where the fields differ from their defaults."""
    layers = [layer for config in TINY.values() for layer in read_layers(config)]
    assert {layer.activation.name for layer in layers} >= {
        "silu", "swigluoai", "swigluoai_uninterleave", "swiglustep", "situ", "gelu_tanh", "relu2_no_mul",
    }  # fmt: skip
    shared = [layer.shared for layer in layers if layer.shared]
    assert any(one.gated for one in shared)
    assert any(one.activation != layer.activation for layer in layers if (one := layer.shared))
    assert any(layer.hidden != layer.model_hidden for layer in layers)
    assert {layer.scale_on_output for layer in layers if layer.routed_scaling_factor != 1.0} == {True, False}
    assert any(layer.has_bias and layer.gate_up_interleaved for layer in layers)
    assert any(layer.router_weight_on_input for layer in layers)
