"""Formats that no checkpoint at hand has: sections as the tools document them."""

from typing import Any

import pytest

from vllm_megamoe.checkpoint.formats import BF16, Known, Mixed
from vllm_megamoe.checkpoint.recognise import formats_of

EXPERTS, SHARED = "model.layers.3.mlp.experts", "model.layers.3.mlp.shared_experts"


def found(section: dict[str, Any], prefix: str = EXPERTS) -> str:
    return str(formats_of({"num_hidden_layers": 8, "quantization_config": section})(prefix, 4))


def tensors(weights: dict[str, Any], acts: bool = True, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8} if acts else None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (tensors({"num_bits": 8, "type": "int", "strategy": "tensor"}), "compressed-tensors-w8a8"),
        (tensors({"num_bits": 8, "type": "int", "strategy": "channel"}, acts=False), "compressed-tensors-w8a16"),
        (tensors({"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": True}), "compressed-tensors-w4a8"),
        (
            tensors({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
            "compressed-tensors-w4a8-group",
        ),
        (tensors({"num_bits": 4, "type": "int", "strategy": "channel"}, acts=False), "compressed-tensors-w4a16"),
        (
            tensors({"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}, acts=False),
            "compressed-tensors-w4a16-zeros",
        ),
        (tensors({"num_bits": 8, "type": "float", "strategy": "channel"}), "compressed-tensors-fp8"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "mxfp8", "ignored_layers": ["lm_head"]}, "mxfp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}, "gptq-int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False}, "gptq-int4-zeros"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False}, "gptq-int8-group"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": -1, "sym": False}, "auto-round-int4-zeros"),
        (
            tensors({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}),
            "compressed-tensors-w8a8-group",
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": True}, "awq-int4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, "modelopt-fp8"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, "gptq-int8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "awq-int4-group"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int"}, "auto-round-int4-group"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp"}, "auto-round-mxfp4"),
        ({"quant_method": "auto-round", "bits": 8, "group_size": 32, "data_type": "mx_fp"}, "auto-round-mxfp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt-fp8"),
        ({"quant_method": "modelopt_mxfp8", "quant_algo": "MXFP8"}, "modelopt-mxfp8"),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group"}}},
            "quark-mxfp4",
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel"}}},
            "quark-int8",
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            },
            "quark-fp8",
        ),
    ],
)
def test_sections(section: dict[str, Any], expected: str) -> None:
    assert found(section) == expected


def test_a_weight_of_two_stages_is_neither_of_them() -> None:
    stages = [{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "int4", "qscheme": "per_channel"}]
    section = {"quant_method": "quark", "global_quant_config": {"weight": stages}}
    assert found(section) == "quark fp8_e4m3 per_tensor over int4 per_channel"
    assert found({**section, "global_quant_config": {"weight": stages[:1]}}) == "quark-fp8"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        # GPTQ: a rule for some modules, and a list of all that is quantised (auto_gptq.py).
        ({"dynamic": {"+:.*experts.*": {"bits": 8}}}, "gptq-int8"),
        ({"dynamic": {"+:.*attn.*": {"bits": 8}}}, "gptq-int4"),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.experts"]]}, "gptq-int4"),
        ({"modules_in_block_to_quantize": ["self_attn.q_proj"]}, "bf16"),
    ],
)
def test_gptqs_rules_per_module(section: dict[str, Any], expected: str) -> None:
    assert found({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True, **section}) == expected


@pytest.mark.parametrize(("blocks", "expected"), [("model.layers", "auto-round-int4"), (["vision"], "bf16")])
def test_blocks_that_auto_round_quantised(blocks: Any, expected: str) -> None:
    assert found({"quant_method": "auto-round", "bits": 4, "block_name_to_quantize": blocks}) == expected


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8"}}, "exclude": ["re:.*experts.*"]},
        {"quant_method": "auto-round", "bits": 4, "extra_config": {".*experts.*": {"bits": 16}}},
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "dynamic": {"-:.*experts.*": {}}},
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["experts"]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.layers.3*"]},
        {"quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.experts"]},
    ],
    ids=["quark", "auto-round", "gptq", "awq", "modelopt", "fp8"],
)
def test_experts_that_are_left_out_are_bf16(section: dict[str, Any]) -> None:
    assert found(section) == "bf16"


def test_a_layer_left_out_does_not_hide_another_with_a_longer_number() -> None:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.layers.3.*"]}
    assert found(section, "model.layers.3.mlp.experts") == "bf16"
    assert found(section, "model.layers.30.mlp.experts") == "modelopt-nvfp4"


def test_the_first_group_that_targets_a_projection_counts() -> None:
    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
        "b": {"targets": ["re:.*mlp.experts.*"], "weights": {"num_bits": 4, "type": "int", "strategy": "channel"}},
    }
    section = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert found(section) == "compressed-tensors-w4a16"
    assert found(section, SHARED) == "bf16"


def test_gate_and_down_in_different_ways_are_told() -> None:
    groups = {
        "a": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "int"}, "input_activations": {}},
        "b": {"targets": ["re:.*(gate|up)_proj"], "weights": {"num_bits": 4, "type": "int"}, "input_activations": {}},
    }
    said = found({"quant_method": "compressed-tensors", "config_groups": groups})
    assert said == "mixed: compressed-tensors-w4a8 (0.gate_proj), compressed-tensors-w8a8 (0.down_proj)"


@pytest.mark.parametrize(
    ("version", "second", "expected"),
    [
        ("1.0.0", False, "msmodelslim-w4a8-dynamic"),
        ("1.0.0", True, "msmodelslim-w4a8-dynamic-group"),
        (None, False, "msmodelslim-w4a8-dynamic-old"),
        (None, True, "msmodelslim-w4a8-dynamic-old-group"),
    ],
)
def test_msmodelslim_packings(version: str | None, second: bool, expected: str) -> None:
    described = {f"{EXPERTS}.{e}.{p}_proj.weight": "W4A8_DYNAMIC" for e in range(2) for p in ("gate", "up", "down")}
    if second:
        described |= {key.replace(".weight", ".weight_scale_second"): "W4A8_DYNAMIC" for key in described}
    file = {"quant_model_description.json": {**described, **({"version": version} if version else {})}}
    assert formats_of({}, file)(EXPERTS, 2) == Known(expected)


def test_msmodelslim_asks_every_expert() -> None:
    described = {f"{EXPERTS}.{e}.{p}_proj.weight": "W8A8_DYNAMIC" for e in range(4) for p in ("gate", "up", "down")}
    described[f"{EXPERTS}.2.up_proj.weight"] = "FLOAT"
    said = formats_of({}, {"quant_model_description.json": described})(EXPERTS, 4)
    assert said == Mixed(((Known("msmodelslim-w8a8-dynamic"), "0.gate_proj"), (BF16, "2.up_proj")))
