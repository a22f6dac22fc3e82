"""Config files of quantised checkpoints, as vLLM's server and the command line both read them."""

import json
from typing import Any

from lanes.live.tiny_configs import TINY

Case = tuple[dict[str, Any], str]
"""config.json, and flags beside those that all lines have. A key that ends in .json is a file beside it."""

MTP = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
DESCRIPTION = "quant_model_description.json"
W8A8, W4A8 = "W8A8_DYNAMIC", "W4A8_DYNAMIC"
ALL = {**TINY["Qwen3-MoE"], "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 3}
DEEPSEEK = TINY["DeepSeek-V3"]
ON_A3, ON_950 = {"profile": "a3@9.1"}, {"profile": "950@9.2"}


def described(*kinds: str, suffix: str = "", without: str = "-") -> dict[str, Any]:
    """msModelSlim's file for the experts of layers 0, 1 ..., with the keys of other things that stand beside them.

    A layer without a kind is not listed; `suffix` names a tensor that each projection has beside its weight, `without`
    a part of a name that is left out.
    """
    experts = {
        f"model.layers.{layer}.mlp.experts.{e}.{name}_proj.weight{end}": kind
        for layer, kind in enumerate(kinds)
        for e in range(8)
        for name in ("gate", "up", "down")
        for end in {"", suffix}
        if kind
    }
    beside = {
        "version": "1.0.0",
        "model_quant_type": "W8A8_DYNAMIC",
        "metadata": {"quarot": {"max_tp_size": 4}},
        "kv_cache_type": "C8",
        "model.layers.0.self_attn.k_proj.kv_cache_scale": "W8A8",
        "model.layers.0.self_attn.fa_q.scale": "FAQuant",
    }
    return {name: kind for name, kind in experts.items() if without not in name} | beside


def slim(*kinds: str, options: dict[str, Any] | None = None, flags: str = "", **more: Any) -> Case:
    """Three layers of Qwen3-MoE, quantised by msModelSlim."""
    return {**ALL, DESCRIPTION: described(*kinds, **more)}, f"{flags} {option(**(options or {}))}"


def draft(*kinds: str, options: dict[str, Any] | None = None, flags: str = "") -> Case:
    """DeepSeek-V3 with experts in layers 2 and 4 and a draft layer 6."""
    return {**DEEPSEEK, DESCRIPTION: described(*kinds)}, f"{MTP} {flags} {option(**(options or {}))}"


def section(content: dict[str, Any], **options: Any) -> Case:
    """Three layers of Qwen3-MoE with this quantization_config."""
    return {**ALL, "quantization_config": content}, option(**options)


def option(**options: Any) -> str:
    return f"--additional-config '{json.dumps({'megamoe': {'max_padding_overhead': 1000, **options}})}'"


def grouped(**weights: Any) -> dict[str, Any]:
    """compressed-tensors with other weights and no quantised activations."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}}
    packing = "mxfp4-pack-quantized" if weights["type"] == "float" else "pack-quantized"
    plain = {"quant_method": "compressed-tensors", "format": packing, "ignore": ["lm_head"]}
    return {**plain, "config_groups": {"g": group}}


CHANNEL = {"num_bits": 4, "type": "int", "strategy": "channel"}
TWO = "-tp 2 --enable-expert-parallel"
QUANTISED: dict[str, Case] = {
    "msModelSlim W8A8": slim(W8A8, W8A8, W8A8),
    "INT4 beside INT8": slim(W4A8, W8A8, W4A8),
    "INT4 beside INT8 on A3": slim(W4A8, W8A8, W4A8, options=ON_A3, flags=TWO),
    "INT8 where it does not run": slim(W8A8, W8A8, W8A8, options=ON_950, flags=TWO),
    "INT8 there with consent": slim(W8A8, W8A8, W8A8, options={**ON_950, "requant": "allow"}, flags=TWO),
    "a layer that is not listed": slim(W8A8, "", W8A8),
    "a layer that is not listed, with consent": slim(W8A8, "", W8A8, options={"requant": "allow"}),
    "an expert that is not listed": slim(W8A8, W8A8, W8A8, without="1.mlp.experts.7"),
    "A4W4 beside MXFP8": slim("W4A4_MXFP4", "W8A8_MXFP8", "W4A4_MXFP4"),
    "INT4 in groups": slim(W4A8, W4A8, W4A8, suffix="_scale_second"),
    "INT4 in groups, with consent": slim(W4A8, W4A8, W4A8, suffix="_scale_second", options={"requant": "allow"}),
    "INT8 cannot become INT4": slim(W8A8, W8A8, W8A8, options={"use_case": "a8w4-int", "requant": "allow"}),
    "float draft layer": draft("", "", W4A8, "", W4A8, "", "FLOAT"),
    "float draft layer on A3": draft("", "", W4A8, "", W4A8, options=ON_A3, flags=TWO),
    "INT8 draft layer on A3": draft("", "", W4A8, "", W4A8, "", W8A8, options=ON_A3, flags=TWO),
    "two descriptions": ({**ALL, "quantization_config": FP8, DESCRIPTION: described(W8A8, W8A8, W8A8)}, ""),
    "fp8 with consent": section(FP8, requant="allow"),
    "ue8m0": section({**FP8, "scale_fmt": "ue8m0"}),
    "int4 per channel": section(grouped(**CHANNEL)),
    "int4 with zero points": section(grouped(**{**CHANNEL, "symmetric": False})),
    "int4 groups with consent": section(
        grouped(num_bits=4, type="int", strategy="group", group_size=32), requant="allow"
    ),
    "mxfp4": section(grouped(num_bits=4, type="float", strategy="group", group_size=32)),
    "modelopt, MXFP8": section({"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]}),
    "modelopt's file, MXFP8": (
        {**ALL, "hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "MXFP8"}}},
        "",
    ),
}
