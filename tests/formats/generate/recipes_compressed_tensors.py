"""compressed-tensors checkpoints."""

from formats.generate import families
from formats.generate.recipe import Recipe

from vllm_megamoe.testing.formats import floats, integers, sections
from vllm_megamoe.testing.formats.address import TILED

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
        "compressed-tensors-w4a16-zeros",
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
        "ct-fp8-block", "compressed-tensors-fp8-block", floats.CT_FP8_BLOCK, "hf", sections.CT_FP8_BLOCK, shape=TILED
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
