"""Formats by name, on config files that real tools wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.checkpoint.recognise import SIDE_FILES, experts_format, surely_quantised

NAMES = [f"model.layers.1.mlp.experts.{e}.{p}" for e in range(4) for p in ("gate_proj", "up_proj", "down_proj")]


def load(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    section = json.loads((folder / "config.json").read_text()).get("quantization_config")
    side = {name: json.loads((folder / name).read_text()) for name in SIDE_FILES if (folder / name).exists()}
    return section, side


WRITTEN_BY_TOOLS = {
    "qwen3_moe__base__bf16__s0": "bf16",
    "qwen3_moe__llmcompressor__W8A8__s0": "compressed-tensors-w8a8",
    "qwen3_moe__llmcompressor__MXFP4__s0": "compressed-tensors-mxfp4",
    "qwen3_moe__llmcompressor__NVFP4__s0": "compressed-tensors-nvfp4",
    "qwen3_moe__transformers__fp8_block128__s0": "fp8-block",
    "qwen3_moe__autoround__W4A16_auto_gptq__s0": "gptq-int4-group",
    "qwen3_moe__modelopt__MXFP8__s0": "modelopt-mxfp8",
    "qwen3_moe__msmodelslim__w8a8_dynamic__s0": "msmodelslim-w8a8-dynamic",
    "qwen3_moe__msmodelslim__w4a8_mxfp__s0": "msmodelslim-w4a8-mxfp",
}


@pytest.mark.parametrize("folder", WRITTEN_BY_TOOLS)
def test_formats_of_real_tools(folder: str, shared_dir: Path) -> None:
    section, side = load(shared_dir / "fixtures" / folder)
    assert experts_format(section, NAMES, side) == WRITTEN_BY_TOOLS[folder]


INT8_LINEARS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
}


@pytest.mark.parametrize(
    "ignore",
    [["re:.*mlp.experts.*"], ["model.layers.1.mlp.experts", "lm_head"], NAMES],
    ids=["regex", "parent", "names"],
)
def test_ignored_experts_are_bf16(ignore: list[str]) -> None:
    assert experts_format({**INT8_LINEARS, "ignore": ignore}, NAMES) == "bf16"


def test_one_expert_left_out_is_told() -> None:
    ignored = [name for name in NAMES if ".experts.2." in name]
    found = experts_format({**INT8_LINEARS, "ignore": ignored}, NAMES)
    assert "for some of the experts" in found
    assert "experts.0.gate_proj is quantised" in found


def test_similar_names_are_not_confused() -> None:
    # `experts.1` must not cover `experts.10`, nor `layers.1` `layers.11`.
    section = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp.experts.1"]}
    assert "some of" in experts_format(
        section, ["model.layers.1.mlp.experts.1.up_proj", "model.layers.1.mlp.experts.10.up_proj"]
    )


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (None, None),
        ({"quant_method": "fp8"}, "fp8"),
        (INT8_LINEARS, "compressed-tensors-w8a16"),
        ({**INT8_LINEARS, "ignore": ["re:.*block_sparse_moe.*"]}, None),
    ],
)
def test_before_names_are_known_only_sure_cases_are_rejected(
    section: dict[str, Any] | None, expected: str | None
) -> None:
    assert surely_quantised(section, num_layers=2) == expected
