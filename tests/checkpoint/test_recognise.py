"""Formats by name, on config files that real tools wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.checkpoint.formats import BF16, Known, Mixed
from vllm_megamoe.checkpoint.recognise import SIDE_FILES, experts_format, formats_of, surely_quantised

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
    assert experts_format(section, NAMES, side) == Known(WRITTEN_BY_TOOLS[folder])


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
    assert experts_format({**INT8_LINEARS, "ignore": ignore}, NAMES) == BF16


def test_one_expert_left_out_is_told() -> None:
    ignored = [name for name in NAMES if ".experts.2." in name]
    found = experts_format({**INT8_LINEARS, "ignore": ignored}, NAMES)
    assert found == Mixed(((Known("compressed-tensors-w8a16"), "0.gate_proj"), (BF16, "2.gate_proj")))


def test_similar_names_are_not_confused() -> None:
    # `experts.1` must not cover `experts.10`, nor `layers.1` `layers.11`.
    section = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp.experts.1"]}
    names = ["model.layers.1.mlp.experts.1.up_proj", "model.layers.1.mlp.experts.10.up_proj"]
    assert experts_format(section, names) == Mixed(((BF16, "1.up_proj"), (Known("fp8"), "10.up_proj")))


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
    assert surely_quantised(section, num_layers=2) == (expected and Known(expected))


@pytest.mark.parametrize(
    ("ignored", "number"),
    [
        (r"re:.*mlp\.experts\.0\..*", 0),
        (r"re:.*mlp\.experts\.7\..*", 7),
        (r"re:.*mlp\.experts\.(5|6)\..*", 5),
        (r"re:.*mlp\.experts\.[6-7]\..*", 6),
        (r"re:.*experts\.1\d\..*", 10),
        (r"re:.*mlp\.experts\.1", 1),
        (r"re:.*experts\.(?!0)\d+\..*", 1),
        (r"re:.*experts..\.up_proj", 0),
        ("model.layers.1.mlp.experts.11", 11),
        ("model.layers.*.mlp.experts.1?.*", 10),
    ],
)
def test_one_expert_left_out_by_a_pattern_is_found(ignored: str, number: int) -> None:
    section = {**INT8_LINEARS, "ignore": [ignored]}
    found = formats_of({"num_hidden_layers": 2, "quantization_config": section})("model.layers.1.mlp.experts", 12)
    assert isinstance(found, Mixed)
    assert any(form == BF16 and int(projection.split(".")[0]) == number for form, projection in found.parts)
    # The server asks every name, and hears the same formats.
    names = [f"model.layers.1.mlp.experts.{e}.{p}" for e in range(12) for p in ("gate_proj", "up_proj", "down_proj")]
    assert {form for form, _ in found.parts} == {form for form, _ in experts_format(section, names).parts}


def test_a_section_of_either_name_counts() -> None:
    for key in ("quantization_config", "compression_config"):
        assert str(formats_of({key: INT8_LINEARS})("model.layers.0.mlp.experts", 4)) == "compressed-tensors-w8a16"
        inside = {"text_config": {key: INT8_LINEARS}}
        assert str(formats_of(inside)("model.layers.0.mlp.experts", 4)) == "compressed-tensors-w8a16"


@pytest.mark.parametrize(
    "file", [{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, {"quant_algo": "FP8"}]
)
def test_modelopts_file_in_place_of_the_section(file: dict[str, Any]) -> None:
    # vLLM puts hf_quant_config.json there when config.json has no section.
    assert experts_format(file, NAMES) == experts_format(None, NAMES, {"hf_quant_config.json": file})
    assert experts_format(file, NAMES) == Known("modelopt-fp8")


def test_experts_without_a_gate_are_not_asked_for_it() -> None:
    layers = {
        f"backbone.layers.1.mixer.experts.{e}.{p}": {"quant_algo": "FP8"}
        for e in range(3)
        for p in ("up_proj", "down_proj")
    }
    files = {"hf_quant_config.json": {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}}
    prefix = "model.layers.1.mixer.experts"
    assert formats_of({}, files)(prefix, 3, gated=False) == Known("modelopt-fp8")
    assert isinstance(formats_of({}, files)(prefix, 3), Mixed)
