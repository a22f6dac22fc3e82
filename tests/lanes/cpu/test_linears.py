"""Who runs the linears of a quantised checkpoint on a CPU: vLLM where it can, else they are dequantised."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.lanes.collected import Collected
from vllm_megamoe.lanes.cpu.linears import TALLY
from vllm_megamoe.lanes.quant_config import MegaMoeConfig

ATTENTION = "model.layers.0.self_attn.o_proj"

pytestmark = pytest.mark.usefixtures("vllm_here")


def section(shared_dir: Path, folder: str) -> dict[str, Any]:
    config = json.loads((shared_dir / "fixtures" / f"{folder}__s0" / "config.json").read_text())
    found: dict[str, Any] = config["quantization_config"]
    return found


def build(config: MegaMoeConfig, prefix: str = ATTENTION) -> Any:
    from vllm.model_executor.layers.linear import RowParallelLinear

    return RowParallelLinear(256, 256, bias=False, quant_config=config, prefix=prefix)


@pytest.mark.parametrize(
    ("folder", "scheme"),
    [
        ("mixtral__llmcompressor-mf__W8A8", "CompressedTensorsW8A8Int8"),
        ("qwen3_moe__llmcompressor__W4A16", "CompressedTensorsWNA16"),
        ("qwen3_moe__llmcompressor__W4A8_channel", "CompressedTensorsW4A8Int"),
    ],
)
def test_what_vllm_runs_here_stays_with_vllm(folder: str, scheme: str, shared_dir: Path) -> None:
    linear = build(MegaMoeConfig(section(shared_dir, folder)))
    assert type(linear.scheme).__name__ == scheme
    assert not isinstance(linear.quant_method, Collected)


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("qwen3_moe__llmcompressor__MXFP8", "ValueError: Failed to find a kernel"),
        ("qwen3_moe__llmcompressor__NVFP4", "ValueError: Failed to find a kernel"),
        ("qwen3_moe__modelopt__MXFP8", "ValueError: Failed to find a kernel"),
        ("qwen3_moe__autoround__W4A16_auto_gptq", "vLLM reads the weight itself, or drops g_idx"),
    ],
)
def test_what_it_does_not_run_is_dequantised_and_said_once(
    folder: str, why: str, shared_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the number of layers, their bytes in BF16 and vLLM's own reason."""
    TALLY.tell()
    caplog.clear()
    config = MegaMoeConfig(section(shared_dir, folder))
    for layer in range(2):
        assert isinstance(build(config, ATTENTION.replace("0", str(layer))).quant_method, Collected)
    with caplog.at_level(logging.WARNING):
        TALLY.tell()
        TALLY.tell()
    (said,) = [r.getMessage() for r in caplog.records if "twin only" in r.getMessage()]
    assert f"{2 * 2 * 256 * 256 / 2**20:.1f} MiB" in said
    assert "2 of " in said
    assert why in said


def test_a_class_that_refuses_the_checkpoint_is_done_without(
    shared_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ModelOpt's MXFP4: vLLM's class takes FP8, NVFP4 and MXFP8 alone, on any platform."""
    refused = section(shared_dir, "qwen3_moe__modelopt__MXFP8") | {"quant_algo": "MXFP4"}
    with caplog.at_level(logging.WARNING):
        config = MegaMoeConfig(refused)
        assert config.inner is None
    assert "vLLM refuses quantization_config with quant_method 'modelopt" in caplog.text
    assert isinstance(build(config).quant_method, Collected)


def test_unknown_keys_and_methods_are_no_reason_to_stop(shared_dir: Path) -> None:
    """Layers that nothing quantised are vLLM's plain ones, whatever else the section says."""
    compressed = section(shared_dir, "qwen3_moe__llmcompressor__MXFP8")
    compressed["ignore"].append("re:.*self_attn.*")
    compressed["made_in"] = {"2031": True}
    linear = build(MegaMoeConfig(compressed))
    assert type(linear.quant_method).__name__ == "UnquantizedLinearMethod"


def test_a_format_that_nobody_can_read_is_named() -> None:
    """Before weights are read, with the formats that can be."""
    config = MegaMoeConfig()
    config.side_files = {"quant_model_description.json": {f"{ATTENTION}.weight": "W4A4_FLATQUANT_DYNAMIC"}}
    with pytest.raises(CheckpointError, match="msmodelslim-w4a4-flatquant-dynamic"):
        build(config)


def test_latent_attention_reads_plain_numbers(shared_dir: Path) -> None:
    """vLLM would run a quantised kv_b_proj, but attention takes its weight apart."""
    config = MegaMoeConfig(section(shared_dir, "mixtral__llmcompressor-mf__W8A8") | {"ignore": []})
    assert isinstance(build(config, "model.layers.0.self_attn.kv_b_proj").quant_method, Collected)


def test_router_and_other_plain_layers_are_vllms_own() -> None:
    linear = build(MegaMoeConfig())
    assert type(linear.quant_method).__name__ == "UnquantizedLinearMethod"
    assert linear.weight.dtype == torch.bfloat16
