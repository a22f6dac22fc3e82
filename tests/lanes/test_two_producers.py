"""MoeFacts has two producers, config.json and the live vLLM layer: they agree for every family that vLLM builds here.

One process builds all models on the meta device, from the same config.json content that the other producer reads.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from lanes.live.tiny_configs import TINY

from vllm_megamoe.plan.read_config.reader import is_known, read_layers

SCRIPT = Path(__file__).parent / "live" / "build.py"

# What vLLM 0.32 itself rejects on a CPU, and its words.
NOT_BUILT = {
    "Nemotron-H": "is_act_and_mul=False is supported only for CUDA",
    "DeepSeek-V3.2": "Sparse Attention is not supported on CPU",
}

# Fields that one producer cannot see. `skips_reduction` follows from the parallel sizes, which no config.json has.
NOT_COMPARED = {"skips_reduction"}


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
    # vLLM builds Step-3 without its first prefix.
    return {**kept, "name": f"model{facts['name']}" if facts["name"].startswith(".") else facts["name"]}


@pytest.mark.parametrize("model", [name for name in TINY if name not in NOT_BUILT])
def test_both_say_the_same(model: str, built: dict[str, Any]) -> None:
    assert "layers" in built[model], built[model]
    from_config = [compared(asdict(layer)) for layer in read_layers(TINY[model])]
    assert [compared(layer) for layer in built[model]["layers"]] == from_config
    assert from_config


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
