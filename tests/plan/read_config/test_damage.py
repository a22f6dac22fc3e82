"""Config files that were damaged: whatever stands under whatever key, the answer is facts or a ConfigError."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes.live.tiny_configs import TINY

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.model import DraftModel, Speculation, read_model

EXPERTS = "model.layers.1.mlp.experts"
SECTIONS: dict[str, dict[str, Any]] = {
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head", r"re:.*mlp\.gate$", f"{EXPERTS}.3"],
        "config_groups": {
            "g": {
                "targets": ["Linear", "re:.*experts.*"],
                "format": "int-quantized",
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
                "input_activations": {"num_bits": 8},
            }
        },
    },
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "ignored_layers": [EXPERTS]},
    "deepseek": {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "quantized_layers": {EXPERTS: {"quant_algo": "X"}}},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {EXPERTS: {}}},
    "gptq": {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "dynamic": {"-:.*gate.*": {}},
        "modules_in_block_to_quantize": [["mlp.experts"]],
    },
    "awq": {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "modules_to_not_convert": ["gate"]},
    "auto-round": {
        "quant_method": "auto-round", "bits": 4, "data_type": "int", "group_size": -1, "block_name_to_quantize": "m",
        "extra_config": {".*gate.*": {"bits": 16}},
    },
    "quark": {
        "quant_method": "quark", "exclude": ["*gate"],
        "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group"}},
        "layer_quant_config": {"*experts*": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}},
    },
    "mxfp8": {"quant_method": "mxfp8", "ignored_layers": ["lm_head"]},
    "another": {"quant_method": "brand-new", "exclude": ["lm_head"]},
}  # fmt: skip
SIDE_FILES: dict[str, dict[str, Any]] = {
    "hf_quant_config.json": {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {EXPERTS: {"quant_algo": "FP8"}}},
    },
    "quant_model_description.json": {"version": "1.0.0", f"{EXPERTS}.0.gate_proj.weight": "W8A8_DYNAMIC"},
}
UNKNOWN = {
    "architectures": ["BrandNewForCausalLM"], "model_type": "new", "hidden_size": 64, "num_hidden_layers": 3,
    "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 48}, "vision_config": {"depth": 2},
}  # fmt: skip
MODELS = [*TINY.values(), UNKNOWN, {"architectures": ["QwenVL"], "text_config": TINY["Qwen3-MoE"]}]

JUNK: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**70, 0.5, float("nan"), float("inf"), "", "x", "7", "[", "{}", "re:(", "*", [], {}, [1],
    [None], ["x", 3], [[1]], {"x": 1}, {"x": {"y": 1}}, [{"weight": 1}], [1, 2],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value, and to the keys above it."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


def damaged(whole: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    changed = copy.deepcopy(whole)
    target: Any = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = junk
    return changed


def read(whole: dict[str, Any]) -> str:
    """Facts or the error's text; any other exception goes on."""
    files = {name: content for name, content in whole["files"].items() if isinstance(content, dict)}
    config = whole["config"] if isinstance(whole["config"], dict) else {}
    draft = Speculation("mtp", DraftModel("draft", config, files, ""))
    for speculative in (None, Speculation("mtp"), draft):
        try:
            found = read_model(config, files, speculative=speculative)
        except ConfigError as error:
            return str(error)
        assert len(found.layers) < 30_000
    return ""


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_a_config_error_or_nothing(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(MODELS), label="model")
    section = data.draw(st.sampled_from([None, *SECTIONS.values()]), label="section")
    files = data.draw(st.sampled_from([{}, *({name: content} for name, content in SIDE_FILES.items())]), label="files")
    whole = {"config": {**config, **({"quantization_config": section} if section else {})}, "files": files}
    for _ in range(data.draw(st.integers(1, 2), label="times")):
        path = data.draw(st.sampled_from([path for path in places(whole) if len(path) > 1]), label="path")
        whole = damaged(whole, path, data.draw(st.sampled_from(JUNK), label="junk"))
    read(whole)


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {EXPERTS: "FP8"}},
            f"config.json: quantization_config.quantized_layers.{EXPERTS} = 'FP8'; expected an object",
        ),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": [EXPERTS]}, "quantized_layers = "),
        ({**SECTIONS["gptq"], "bits": "four"}, "quantization_config.bits = 'four'; expected a whole number"),
        ({**SECTIONS["gptq"], "dynamic": {"-:(": {}}}, "'(' is no regular expression"),
        ({**SECTIONS["quark"], "global_quant_config": {"weight": ["fp4"]}}, "weight = ['fp4']; expected an object"),
        ({**SECTIONS["auto-round"], "extra_config": {"a": 16}}, "extra_config.a = 16; expected an object"),
        ({**SECTIONS["awq"], "modules_to_not_convert": "[gate"}, "modules_to_not_convert = '[gate'; expected JSON"),
        ("fp8", "config.json.quantization_config = 'fp8'; expected an object"),
    ],
)
def test_the_file_and_the_key_are_named(section: Any, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_model({**TINY["Qwen3-MoE"], "quantization_config": section}, {})
    assert named in str(caught.value)


def test_modelopts_own_file_is_named() -> None:
    file = {"hf_quant_config.json": {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 3}}}}
    with pytest.raises(ConfigError, match=r"^hf_quant_config\.json\.quantization\.quantized_layers\.a = 3"):
        read_model(TINY["Qwen3-MoE"], file)


def test_what_is_whole_is_read() -> None:
    for config in MODELS:
        assert read({"config": config, "files": {}}) == "", json.dumps(config)[:200]
