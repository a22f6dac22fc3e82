"""Quark, ModelOpt, GPTQ, AWQ and AutoRound checkpoints."""

from formats.generate.recipe import Recipe

from vllm_megamoe.testing.formats import floats, gptq_awq, integers, sections
from vllm_megamoe.testing.formats.address import TILED

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
        shape=TILED,
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
        shape=TILED,
    ),
)
