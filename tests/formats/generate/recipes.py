"""Every generated kind of checkpoint, by name."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from formats.generate import families, floats, fused, gptq_awq, integers, sections
from formats.generate.address import Shape
from formats.generate.checkpoint import Recipe
from torch import Tensor

_MS = "msmodelslim"
_TILED = Shape(256, 192)
"""Two tiles of 128 along H, one and a half along I."""
_BIAS = "experts carry biases, and the operator adds none"


def _kv_cache(layer: int) -> Mapping[str, tuple[Tensor, str]]:
    """C8: scales of an int8 KV cache at k_proj and v_proj (vllm-ascend quantization/methods/kv_c8.py; msModelSlim docs)."""
    before = f"model.layers.{layer}.self_attn."
    size = families.KV_HEADS * families.HEAD
    return {
        f"{before}{name}.kv_cache_{what}": (torch.full((size,), value), "W8A8")
        for name in ("k_proj", "v_proj")
        for what, value in (("scale", 0.03125), ("offset", 0.0))
    }


def _fa_quant(layer: int) -> Mapping[str, tuple[Tensor, str]]:
    """FAKQuant: scales of a quantised attention, `fa_q.scale` and its sisters (same source)."""
    before = f"model.layers.{layer}.self_attn."
    return {
        f"{before}fa_{name}.{what}": (torch.full((families.HEADS, 1), value), "FAQuant")
        for name in "qkv"
        for what, value in (("scale", 0.03125), ("offset", 0.0))
    }


def _ms(name: str, scheme: integers.Scheme, **more: object) -> Recipe:
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

FP8 = (
    Recipe("fp8-block", "fp8-block", floats.BLOCK, "hf-sharded", sections.fp8(), shape=_TILED),
    Recipe(
        "fp8-block-deepseek",
        "fp8-block",
        floats.BLOCK,
        "hf-sharded",
        sections.fp8(),
        families.DEEPSEEK,
        _TILED,
        shared=floats.BLOCK,
        draft=floats.BLOCK,
    ),
    Recipe(
        "fp8-block-minimax",
        "fp8-block",
        floats.BLOCK,
        "hf-sharded",
        sections.fp8(fmt="float8_e4m3fn"),
        families.MINIMAX,
        _TILED,
    ),
    Recipe(
        "fp8-block-step",
        "fp8-block",
        floats.BLOCK,
        "hf",
        sections.fp8(),
        families.STEP,
        _TILED,
        fused=fused.per_projection,
        layout="fp8-block-per-projection",
    ),
    Recipe(
        "fp8-block-ue8m0-float32",
        "fp8-block-ue8m0",
        floats.BLOCK_UE8M0,
        "hf-sharded",
        sections.fp8(scale_fmt="ue8m0"),
        shape=_TILED,
    ),
    Recipe(
        "fp8-block-ue8m0",
        "fp8-block-ue8m0",
        floats.BLOCK_E8M0,
        "hf",
        sections.fp8(scale_fmt="ue8m0"),
        families.DEEPSEEK,
        _TILED,
        shared=floats.BLOCK_E8M0,
    ),
    Recipe(
        "fp8-block-unclaimed-powers",
        "fp8-block",
        floats.BLOCK_UE8M0,
        "hf",
        sections.fp8(),
        shape=_TILED,
        exact_here="a8w8-fp",
        needs="no scale_fmt, yet every scale is a power of two: the bits decide",
    ),
    Recipe(
        "fp8-block-false-claim",
        "fp8-block-ue8m0",
        floats.BLOCK,
        "hf",
        sections.fp8(scale_fmt="ue8m0"),
        shape=_TILED,
        needs="scale_fmt says ue8m0, the scales are free: the bits decide",
    ),
    Recipe("fp8-tensor", "fp8", floats.FP8_TENSOR, "hf", sections.fp8(False, activation_scheme="static")),
    Recipe(
        "deepseek-v4",
        "deepseek-v4-fp4",
        floats.V4_FP4,
        "hf-sharded",
        sections.fp8(scale_fmt="ue8m0"),
        families.DEEPSEEK_V4,
        _TILED,
        shared=floats.V4_BLOCK,
        draft=floats.V4_FP4,
    ),
    Recipe(
        "deepseek-v4-fp8-experts",
        "fp8-block-ue8m0",
        floats.V4_EXPERTS_FP8,
        "hf",
        sections.fp8(scale_fmt="ue8m0"),
        replace(families.DEEPSEEK_V4, sizes={**(families.DEEPSEEK_V4.sizes or {}), "expert_dtype": "fp8"}),
        _TILED,
        shared=floats.V4_BLOCK,
    ),
    Recipe(
        "minimax-m3-mxfp8",
        "mxfp8",
        floats.MINIMAX_MXFP8,
        "hf-sharded",
        {"quant_method": "mxfp8", "ignored_layers": ["lm_head", "self_attn", "block_sparse_moe.gate"]},
        families.MINIMAX_M3,
    ),
)

COMPRESSED_TENSORS = (
    Recipe("ct-w8a8", "compressed-tensors-w8a8", integers.CT_W8A8, "hf", sections.CT_W8A8),
    Recipe(
        "ct-w8a8-mixtral", "compressed-tensors-w8a8", integers.CT_W8A8, "hf-sharded", sections.CT_W8A8, families.MIXTRAL
    ),
    Recipe(
        "ct-w8a8-tensor",
        "compressed-tensors-w8a8",
        integers.CT_W8A8_TENSOR,
        "hf",
        sections.CT_W8A8_TENSOR,
        needs="gate and up have their own scale each",
    ),
    Recipe("ct-w8a16", "compressed-tensors-w8a16", integers.CT_W8A16, "hf", sections.CT_W8A16),
    Recipe("ct-w4a8", "compressed-tensors-w4a8", integers.CT_W4A8, "hf", sections.CT_W4A8),
    Recipe("ct-w4a8-group", "compressed-tensors-w4a8-group", integers.CT_W4A8_GROUP, "hf", sections.CT_W4A8_GROUP),
    Recipe("ct-w4a16", "compressed-tensors-w4a16", integers.CT_W4A16, "hf", sections.CT_W4A16),
    Recipe(
        "ct-w4a16-asym",
        "compressed-tensors-w4a16",
        integers.CT_W4A16_ASYM,
        "hf",
        sections.CT_W4A16_ASYM,
        needs="code - zero point lies in -15..15: int8 codes, not int4",
    ),
    Recipe("ct-w4a16-group", "compressed-tensors-w4a16-group", integers.CT_W4A16_GROUP, "hf", sections.CT_W4A16_GROUP),
    Recipe(
        "ct-w4a16-group-asym",
        "compressed-tensors-w4a16-group",
        integers.CT_W4A16_GROUP_ASYM,
        "hf",
        sections.CT_W4A16_GROUP_ASYM,
    ),
    Recipe(
        "ct-w4a16-group-actorder",
        "compressed-tensors-w4a16-group",
        integers.CT_W4A16_ACTORDER,
        "hf",
        sections.CT_W4A16_ACTORDER,
    ),
    Recipe(
        "kimi-k2.5",
        "compressed-tensors-w4a16-group",
        integers.CT_W4A16_GROUP,
        "hf-sharded",
        sections.KIMI_INT4,
        families.KIMI,
        shared=floats.PLAIN,
    ),
    Recipe("ct-fp8-channel", "compressed-tensors-fp8", floats.CT_FP8, "hf", sections.CT_FP8),
    Recipe("ct-fp8-tensor", "compressed-tensors-fp8", floats.CT_FP8_TENSOR, "hf", sections.CT_FP8_TENSOR),
    Recipe(
        "ct-fp8-block", "compressed-tensors-fp8-block", floats.CT_FP8_BLOCK, "hf", sections.CT_FP8_BLOCK, shape=_TILED
    ),
    Recipe("ct-mxfp8", "compressed-tensors-mxfp8", floats.CT_MXFP8, "hf", sections.CT_MXFP8),
    Recipe(
        "ct-mxfp8-minimax",
        "compressed-tensors-mxfp8",
        floats.CT_MXFP8,
        "hf-sharded",
        sections.CT_MXFP8,
        families.MINIMAX,
    ),
    Recipe("ct-mxfp4", "compressed-tensors-mxfp4", floats.CT_MXFP4, "hf", sections.CT_MXFP4),
    Recipe("ct-mxfp4-a16", "compressed-tensors-mxfp4", floats.CT_MXFP4, "hf", sections.CT_MXFP4_A16),
    Recipe("ct-nvfp4", "compressed-tensors-nvfp4", floats.CT_NVFP4, "hf", sections.CT_NVFP4),
    Recipe(
        "ct-mixed",
        "compressed-tensors-w4a16",
        integers.CT_W4A16,
        "hf",
        sections.CT_MIXED,
        mixed={2: integers.CT_W8A8},
        needs="each group's own `format` counts, the top one says mixed-precision",
    ),
    Recipe(
        "ct-ignored-layer",
        "compressed-tensors-w8a8",
        integers.CT_W8A8,
        "hf",
        sections.CT_IGNORED_LAYER,
        mixed={1: floats.PLAIN},
        refused="a BF16 layer and int8 layers cannot share a communicator (dispatch mode 0 and 2)",
    ),
)

OTHERS = (
    Recipe("quark-mxfp4", "quark-mxfp4", floats.QUARK_MXFP4, "hf", sections.QUARK_MXFP4),
    Recipe("quark-int8", "quark-int8", integers.QUARK_INT8, "hf", sections.quark("int8", "per_channel")),
    Recipe("quark-int8-tensor", "quark-int8", integers.QUARK_INT8_TENSOR, "hf", sections.quark("int8", "per_tensor")),
    Recipe("quark-fp8", "quark-fp8", floats.QUARK_FP8, "hf", sections.quark("fp8_e4m3", "per_channel")),
    Recipe(
        "quark-fp8-tensor", "quark-fp8", floats.QUARK_FP8_TENSOR, "hf", sections.quark("fp8_e4m3", "per_tensor", True)
    ),
    Recipe(
        "modelopt-mxfp8",
        "modelopt-mxfp8",
        floats.MO_MXFP8,
        "hf",
        sections.modelopt("MXFP8"),
        side={"hf_quant_config.json": sections.modelopt_side("MXFP8", 32)},
    ),
    Recipe(
        "modelopt-mxfp8-side-file",
        "modelopt-mxfp8",
        floats.MO_MXFP8,
        "hf",
        side={"hf_quant_config.json": sections.modelopt_side("MXFP8", 32)},
        needs="config.json says nothing; hf_quant_config.json does",
    ),
    Recipe("modelopt-mxfp4", "modelopt-mxfp4", floats.MO_MXFP4, "hf", sections.modelopt("MXFP4")),
    Recipe(
        "modelopt-w4a8-mxfp4-fp8", "modelopt-w4a8-mxfp4-fp8", floats.MO_W4A8, "hf", sections.modelopt("W4A8_MXFP4_FP8")
    ),
    Recipe(
        "modelopt-fp8",
        "modelopt-fp8",
        floats.MO_FP8,
        "hf",
        sections.modelopt("FP8"),
        side={"hf_quant_config.json": sections.modelopt_side("FP8", None)},
    ),
    Recipe(
        "modelopt-fp8-channel",
        "modelopt-fp8",
        floats.MO_FP8_CHANNEL,
        "hf",
        sections.modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
    ),
    Recipe(
        "modelopt-fp8-block",
        "modelopt-fp8-pb-wo",
        floats.MO_FP8_BLOCK,
        "hf",
        sections.modelopt("fp8_pb_wo"),
        shape=_TILED,
    ),
    Recipe(
        "modelopt-nvfp4",
        "modelopt-nvfp4",
        floats.MO_NVFP4,
        "hf-sharded",
        sections.modelopt("NVFP4"),
        side={"hf_quant_config.json": sections.modelopt_side("NVFP4", 16)},
    ),
    Recipe(
        "modelopt-w4a16-nvfp4", "modelopt-w4a16-nvfp4", floats.MO_W4A16_NVFP4, "hf", sections.modelopt("W4A16_NVFP4")
    ),
    Recipe("gptq-channel", "gptq-int4", gptq_awq.GPTQ, "hf", sections.gptq(group_size=-1)),
    Recipe("gptq-group", "gptq-int4-group", gptq_awq.GPTQ_GROUP, "hf", sections.gptq()),
    Recipe("gptq-group-asym", "gptq-int4-group", gptq_awq.GPTQ_ASYM, "hf", sections.gptq(sym=False)),
    Recipe(
        "gptq-group-actorder", "gptq-int4-group", gptq_awq.GPTQ_ACTORDER, "hf", sections.gptq(sym=False, desc_act=True)
    ),
    Recipe("gptq-v2", "gptq-int4-group", gptq_awq.GPTQ_V2, "hf", sections.gptq(sym=False, checkpoint_format="gptq_v2")),
    Recipe("gptq-int8", "gptq-int8", gptq_awq.GPTQ_INT8, "hf", sections.gptq(8, -1)),
    Recipe(
        "awq-channel",
        "awq-int4",
        gptq_awq.AWQ,
        "hf",
        sections.awq(-1),
        needs="code - zero point lies in -15..15: int8 codes, not int4",
    ),
    Recipe("awq-group", "awq-int4-group", gptq_awq.AWQ_GROUP, "hf-sharded", sections.awq()),
    Recipe(
        "auto-round-gptq",
        "auto-round-int4-group",
        gptq_awq.AR_GPTQ,
        "hf",
        sections.auto_round(4, 32, "int", "auto_round:auto_gptq"),
    ),
    Recipe(
        "auto-round-channel",
        "auto-round-int4",
        gptq_awq.AR_GPTQ_CHANNEL,
        "hf",
        sections.auto_round(4, -1, "int", "auto_round:auto_gptq"),
    ),
    Recipe(
        "auto-round-awq",
        "auto-round-int4-group",
        gptq_awq.AR_AWQ,
        "hf",
        sections.auto_round(4, 32, "int", "auto_round:auto_awq", False),
    ),
    Recipe(
        "auto-round-mxfp8",
        "auto-round-mxfp8",
        floats.AR_MXFP8,
        "hf",
        sections.auto_round(8, 32, "mx_fp", "auto_round:llm_compressor"),
    ),
    Recipe(
        "auto-round-mxfp4",
        "auto-round-mxfp4",
        floats.AR_MXFP4,
        "hf",
        sections.auto_round(4, 32, "mx_fp", "auto_round:llm_compressor"),
    ),
    Recipe(
        "auto-round-fp8-block",
        "fp8-block",
        floats.AR_FP8_BLOCK,
        "hf",
        sections.fp8(provider="auto-round"),
        shape=_TILED,
    ),
)

FLOATS = (
    Recipe("bf16", "bf16", floats.PLAIN, "hf-sharded"),
    Recipe("bf16-mixtral", "bf16", floats.PLAIN, "hf", family=families.MIXTRAL),
    Recipe("bf16-minimax", "bf16", floats.PLAIN, "hf", family=families.MINIMAX),
    Recipe(
        "bf16-deepseek",
        "bf16",
        floats.PLAIN,
        "hf-sharded",
        family=families.DEEPSEEK,
        shared=floats.PLAIN,
        draft=floats.PLAIN,
    ),
    Recipe("bf16-qwen2", "bf16", floats.PLAIN, "hf", family=families.QWEN2, shared=floats.PLAIN),
    Recipe("bf16-halves", "bf16", floats.PLAIN, "hf", family=families.QWEN35, fused=fused.halves),
    Recipe("bf16-transposed", "bf16", floats.PLAIN, "hf", family=families.QWEN3_VL, fused=fused.transposed_halves),
    Recipe("bf16-llama4", "bf16", floats.PLAIN, "hf", family=families.LLAMA4, fused=fused.transposed_halves),
    Recipe(
        "bf16-interleaved",
        "bf16",
        floats.PLAIN,
        "hf",
        family=families.GPT_OSS,
        fused=fused.interleaved,
        biased=True,
        refused=_BIAS,
    ),
    Recipe("bf16-per-projection", "bf16", floats.PLAIN, "hf", family=families.STEP, fused=fused.per_projection),
    Recipe(
        "fp16",
        "bf16",
        floats.FP16,
        "hf",
        needs="float16 with mantissas that bfloat16 does not hold: never cast in silence",
    ),
    Recipe(
        "gpt-oss-mxfp4",
        "gpt-oss-mxfp4",
        floats.MO_MXFP4,
        "hf",
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
        families.GPT_OSS,
        fused=fused.blocks,
        biased=True,
        refused=_BIAS,
        layout="gpt-oss-mxfp4",
    ),
)

RECIPES = {recipe.name: recipe for recipe in (*MSMODELSLIM, *FP8, *COMPRESSED_TENSORS, *OTHERS, *FLOATS)}
"""Every recipe by its name."""
