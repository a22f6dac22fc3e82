"""`quantization_config` of each tool, as its files state it (keys of the fixtures and of the published configs)."""

from typing import Any

NOT_EXPERTS = ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"]


def compressed_tensors(
    layout: str, weights: dict[str, Any], activations: dict[str, Any] | None, ignore: list[str] | None = None
) -> dict[str, Any]:
    """One group for all linears."""
    group = {
        "format": layout,
        "input_activations": activations,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": layout,
        "ignore": NOT_EXPERTS + (ignore or []),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "version": "0.19.0",
    }


def args(
    bits: int,
    kind: str,
    strategy: str,
    group_size: int | None = None,
    symmetric: bool = True,
    dynamic: bool | str = False,
    **more: Any,
) -> dict[str, Any]:
    """Quantization arguments of compressed-tensors."""
    return {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": symmetric,
        "dynamic": dynamic,
        "actorder": None,
        "block_structure": None,
        "observer": None,
        "observer_kwargs": {},
        **more,
    }


INT8_TOKENS = args(8, "int", "token", dynamic=True)
FP8_TOKENS = args(8, "float", "token", dynamic=True)
FP8_TENSOR = args(8, "float", "tensor")

CT_W8A8 = compressed_tensors("int-quantized", args(8, "int", "channel"), INT8_TOKENS)
CT_W8A8_TENSOR = compressed_tensors("int-quantized", args(8, "int", "tensor"), INT8_TOKENS)
CT_W8A16 = compressed_tensors("pack-quantized", args(8, "int", "channel"), None)
CT_W4A8 = compressed_tensors("int-quantized", args(4, "int", "channel"), INT8_TOKENS)
CT_W4A8_GROUP = compressed_tensors("int-quantized", args(4, "int", "group", 32), INT8_TOKENS)
CT_W4A16 = compressed_tensors("pack-quantized", args(4, "int", "channel"), None)
CT_W4A16_ASYM = compressed_tensors("pack-quantized", args(4, "int", "channel", symmetric=False), None)
CT_W4A16_GROUP = compressed_tensors("pack-quantized", args(4, "int", "group", 32), None)
CT_W4A16_GROUP_ASYM = compressed_tensors("pack-quantized", args(4, "int", "group", 32, symmetric=False), None)
CT_W4A16_ACTORDER = compressed_tensors(
    "pack-quantized", args(4, "int", "group", 32, symmetric=False) | {"actorder": "group"}, None
)
KIMI_INT4 = CT_W4A16_GROUP | {
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
}
CT_FP8 = compressed_tensors("float-quantized", args(8, "float", "channel"), FP8_TOKENS)
CT_FP8_TENSOR = compressed_tensors("float-quantized", args(8, "float", "tensor"), FP8_TENSOR)
CT_FP8_BLOCK = compressed_tensors(
    "float-quantized",
    args(8, "float", "block") | {"block_structure": [128, 128]},
    args(8, "float", "group", 128, dynamic=True),
)
_MX: dict[str, Any] = {"scale_dtype": "torch.uint8", "zp_dtype": None}
CT_MXFP8 = compressed_tensors(
    "mxfp8-quantized", args(8, "float", "group", 32, **_MX), args(8, "float", "group", 32, dynamic=True, **_MX)
)
CT_MXFP4 = compressed_tensors(
    "mxfp4-pack-quantized", args(4, "float", "group", 32, **_MX), args(4, "float", "group", 32, dynamic=True, **_MX)
)
CT_MXFP4_A16 = compressed_tensors("mxfp4-pack-quantized", args(4, "float", "group", 32, **_MX), None)
_NV: dict[str, Any] = {"scale_dtype": "torch.float8_e4m3fn", "zp_dtype": None}
CT_NVFP4 = compressed_tensors(
    "nvfp4-pack-quantized",
    args(4, "float", "tensor_group", 16, **_NV),
    args(4, "float", "tensor_group", 16, dynamic="local", **_NV),
)

CT_MIXED: dict[str, Any] = CT_W8A8 | {
    "format": "mixed-precision",
    "config_groups": {
        "group_0": {
            "format": "int-quantized",
            "input_activations": INT8_TOKENS,
            "output_activations": None,
            "targets": ["re:.*layers.2.mlp.experts.*"],
            "weights": args(8, "int", "channel"),
        },
        "group_1": {
            "format": "pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": ["re:.*layers.[013456789].mlp.experts.*"],
            "weights": args(4, "int", "channel"),
        },
    },
}
"""Layer 2 is int8 in bytes, the others int4 in words: the format of each group counts."""
CT_IGNORED_LAYER = CT_W8A8 | {"ignore": [*NOT_EXPERTS, "re:.*layers.1.mlp.experts.*"]}

_UNCONVERTED = ["lm_head", "mlp.gate", "block_sparse_moe.gate", "self_attn"]


def fp8(block: bool = True, **more: Any) -> dict[str, Any]:
    """HF fp8."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        **({"weight_block_size": [128, 128]} if block else {}),
        "modules_to_not_convert": _UNCONVERTED,
        **more,
    }


def quark(dtype: str, qscheme: str, static: bool = False, **more: Any) -> dict[str, Any]:
    """AMD Quark."""
    weight = {"dtype": dtype, "qscheme": qscheme, "is_dynamic": False, "symmetric": True, **more}
    if qscheme == "per_channel":
        weight["ch_axis"] = 0
    inputs = weight | {"is_dynamic": not static, "qscheme": "per_tensor" if static else qscheme}
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": ["lm_head", "*self_attn*", "*mlp.gate"],
        "export": {"kv_cache_group": [], "pack_method": "order", "weight_format": "real_quantized"},
    }


QUARK_MXFP4 = quark("fp4", "per_group", group_size=32, scale_format="e8m0", ch_axis=-1)


def modelopt(algorithm: str) -> dict[str, Any]:
    """NVIDIA ModelOpt, in config.json."""
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head", "*self_attn*", "*mlp.gate"],
        "producer": {"name": "modelopt", "version": "0.47.0"},
    }


def modelopt_side(algorithm: str, group_size: int | None) -> dict[str, Any]:
    """ModelOpt's hf_quant_config.json."""
    return {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": None,
            "group_size": group_size,
            "exclude_modules": ["lm_head", "*self_attn*", "*mlp.gate"],
        },
    }


_DYNAMIC: dict[str, dict[str, Any]] = {"-:.*self_attn.*": {}, "-:.*mlp\\.gate$": {}, "-:lm_head": {}}


def gptq(bits: int = 4, group_size: int = 32, sym: bool = True, desc_act: bool = False, **more: Any) -> dict[str, Any]:
    """GPTQ; group_size -1 is one group over all of K."""
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "sym": sym,
        "desc_act": desc_act,
        "lm_head": False,
        "dynamic": _DYNAMIC,
        **more,
    }


def awq(group_size: int = 32) -> dict[str, Any]:
    """AWQ."""
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["self_attn", "mlp.gate", "lm_head"],
    }


def auto_round(bits: int, group_size: int, data_type: str, packing: str, sym: bool = True) -> dict[str, Any]:
    """AutoRound; layers left alone have 16 bits in extra_config."""
    alone = {"bits": 16, "data_type": "float"}
    return {
        "quant_method": "auto-round",
        "bits": bits,
        "group_size": group_size,
        "sym": sym,
        "data_type": data_type,
        "packing_format": packing,
        "autoround_version": "0.16.1",
        "extra_config": {".*self_attn.*": alone, ".*mlp\\.gate": alone},
    }
