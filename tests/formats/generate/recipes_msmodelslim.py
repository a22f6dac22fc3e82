"""msModelSlim checkpoints."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from formats.generate import families
from formats.generate.recipe import Recipe
from torch import Tensor

from vllm_megamoe.testing.formats import floats, integers
from vllm_megamoe.testing.formats.scheme import Scheme

_MS = "msmodelslim"


def _kv_cache(layer: int) -> Mapping[str, tuple[Tensor, str]]:
    """C8: scales of an int8 KV cache at k_proj and v_proj (msModelSlim's page on KV cache quantisation)."""
    before = f"model.layers.{layer}.self_attn."
    size = families.KV_HEADS * families.HEAD
    return {
        f"{before}{name}.kv_cache_{what}": (torch.full((size,), value), "W8A8")
        for name in ("k_proj", "v_proj")
        for what, value in (("scale", 0.03125), ("offset", 0.0))
    }


def _fa_quant(layer: int) -> Mapping[str, tuple[Tensor, str]]:
    """FAKQuant: scales of a quantised attention (vllm-ascend quantization/methods/kv_c8.py)."""
    before = f"model.layers.{layer}.self_attn."
    return {
        f"{before}fa_{name}.{what}": (torch.full((families.HEADS, 1), value), "FAQuant")
        for name in "qkv"
        for what, value in (("scale", 0.03125), ("offset", 0.0))
    }


def _ms(name: str, scheme: Scheme, **more: object) -> Recipe:
    return replace(Recipe(name, scheme.layout, scheme, _MS), **more)  # type: ignore[arg-type]


MSMODELSLIM = (
    _ms("ms-w8a8-dynamic", integers.W8A8_DYNAMIC),
    _ms("ms-w8a8-dynamic-bf16-scales", integers.W8A8_OLD, description={"model_quant_type": "W8A8"}),
    _ms(
        "ms-w8a8-dynamic-deepseek-float-draft",
        integers.W8A8_DYNAMIC,
        family=families.DEEPSEEK,
        shared=integers.W8A8_DYNAMIC,
        draft=floats.FLOAT,
        needs="the draft layer is BF16: a communicator of its own, or refused where the product cannot",
    ),
    _ms("ms-w8a8-static", integers.W8A8_STATIC),
    _ms("ms-w8a8-mix", integers.W8A8_MIX),
    _ms("ms-w4a8-dynamic", integers.W4A8_DYNAMIC, description={"model_quant_type": "W8A8_DYNAMIC"}),
    _ms(
        "ms-w4a8-dynamic-deepseek",
        integers.W4A8_DYNAMIC,
        family=families.DEEPSEEK,
        shared=integers.W8A8_DYNAMIC,
        draft=integers.W8A8_DYNAMIC,
        description={"model_quant_type": "W8A8_DYNAMIC"},
    ),
    _ms("ms-w4a8-dynamic-minimax", integers.W4A8_DYNAMIC, family=families.MINIMAX),
    _ms(
        "ms-w4a8-dynamic-deepseek-v4", integers.W4A8_DYNAMIC, family=families.DEEPSEEK_V4, shared=integers.W8A8_DYNAMIC
    ),
    _ms("ms-w4a8-group", integers.W4A8_GROUP, exact_here="a8w8-int"),
    _ms("ms-w4a8-group-rounds", integers.W4A8_GROUP_ROUNDS),
    _ms("ms-w4a8-old", integers.W4A8_OLD),
    _ms("ms-w4a8-old-group", integers.W4A8_OLD_GROUP, exact_here="a8w8-int"),
    _ms("ms-w4a16", integers.W4A16),
    _ms("ms-w8a8-mxfp8", floats.MS_MXFP8),
    _ms("ms-w4a8-mxfp", floats.MS_W4A8_MXFP),
    _ms(
        "ms-w4a8-mxfp-deepseek",
        floats.MS_W4A8_MXFP,
        family=families.DEEPSEEK,
        shared=floats.MS_MXFP8,
        draft=floats.MS_MXFP8,
    ),
    _ms("ms-w4a4-mxfp4", floats.MS_W4A4_MXFP4),
    _ms("ms-w4a16-mxfp4", floats.MS_W4A16_MXFP4),
    _ms(
        "ms-w4a4-dualscale",
        floats.MS_DUALSCALE,
        refused="weight_dual_scale is a second scale per row, which no use "
        "case has, and it is no power of two; what it means is not settled",
    ),
    _ms("ms-wfp8afp8", floats.MS_WFP8AFP8),
    _ms("ms-w8a8fp8", floats.MS_W8A8FP8),
    _ms(
        "ms-mixed-layers",
        integers.W4A8_DYNAMIC,
        mixed={2: integers.W8A8_DYNAMIC},
        description={"model_quant_type": "W8A8_DYNAMIC"},
        needs="int4 and int8 layers share a communicator: both dispatch int8",
    ),
    _ms(
        "ms-unlisted-layer",
        integers.W8A8_DYNAMIC,
        mixed={1: floats.FLOAT},
        unlisted=(1,),
        refused="a BF16 layer and int8 layers cannot share a communicator (dispatch mode 0 and 2)",
        needs="one warning for the prefix that the description does not list",
    ),
    _ms(
        "ms-mxfp-and-mxfp4-a4",
        floats.MS_W4A4_MXFP4,
        mixed={1: floats.MS_MXFP8},
        needs="a4w4-fp needs every MoE layer: with an MXFP8 layer all become a8w4-fp and a8w8-fp, still exact",
    ),
    _ms(
        "ms-kv-cache-c8",
        integers.W8A8_DYNAMIC,
        more=_kv_cache,
        description={"kv_cache_type": "C8"},
        needs="the experts load; the KV cache's scales are left to vllm-ascend and named on CPU",
    ),
    _ms(
        "ms-fa-quant",
        integers.W8A8_DYNAMIC,
        more=_fa_quant,
        description={"fa_quant_type": "FAQuant"},
        needs="as ms-kv-cache-c8",
    ),
    _ms(
        "ms-quarot",
        integers.W4A8_DYNAMIC,
        description={"metadata": {"quarot": {"max_tp_size": 4}}},
        needs="the rotation is folded into the weights: nothing changes for the experts",
    ),
)
