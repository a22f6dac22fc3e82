"""Every format that can be read, by its stable name (`checkpoint.formats`), and how its projections are stored."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.formats import OWN_PREFIX
from vllm_megamoe.checkpoint.own_shared import OwnMatrix
from vllm_megamoe.checkpoint.stored.groups import Awq, CtBytes, CtPacked, Gptq, NvFp4
from vllm_megamoe.checkpoint.stored.integers import IntPerChannel, MsInt4, MsInt4Old, MsStatic
from vllm_megamoe.checkpoint.stored.matrix import DenseMatrix, Matrix
from vllm_megamoe.checkpoint.stored.microscaling import Fp8Blocks, Fp8PerChannel, Mx
from vllm_megamoe.checkpoint.stored.part import Part, Stored, matrix
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.profiles.use_cases import UseCase

_MS_STATIC = ("input_scale", "input_offset", "quant_bias", "deq_scale")
_MODELOPT = ("input_scale",)


@dataclass(frozen=True, slots=True)
class Plain:
    """Unquantised: `weight` [N, K] in bfloat16, float16 or float32."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part("weight", (torch.bfloat16, torch.float16, torch.float32), matrix()),)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        return DenseMatrix(tensors["weight"])


STORED: dict[str, Stored] = {
    "bf16": Plain(),
    "msmodelslim-w8a8-dynamic": IntPerChannel(8, offset=True),
    "msmodelslim-w8a8": MsStatic(),
    "msmodelslim-w8a8-mix": IntPerChannel(8, offset=True, more=_MS_STATIC),
    "msmodelslim-w4a16": CtPacked(4),
    "msmodelslim-w8a16": IntPerChannel(8, offset=True),
    "msmodelslim-w4a8-dynamic": MsInt4(),
    "msmodelslim-w4a8-dynamic-group": MsInt4(grouped=True),
    "msmodelslim-w4a8-dynamic-old": IntPerChannel(4, offset=True),
    "msmodelslim-w4a8-dynamic-old-group": MsInt4Old(),
    "msmodelslim-w8a8-mxfp8": Mx("e4m3"),
    "msmodelslim-w4a8-mxfp": Mx("e2m1"),
    "msmodelslim-w4a4-mxfp4": Mx("e2m1"),
    "msmodelslim-w4a16-mxfp4": Mx("e2m1"),
    "msmodelslim-wfp8afp8-dynamic": Fp8PerChannel(),
    "msmodelslim-w8a8fp8-dynamic": Fp8PerChannel(),
    "fp8": Fp8PerChannel("weight_scale"),
    "fp8-block": Fp8Blocks(),
    "fp8-block-ue8m0": Fp8Blocks(),
    "deepseek-v4-fp4": Mx("e2m1", scale="scale"),
    "deepseek-v4-fp8": Fp8Blocks(scale="scale"),
    "mxfp8": Mx("e4m3", scale="weight_scale_inv"),
    "compressed-tensors-w8a8": IntPerChannel(8),
    "compressed-tensors-w8a16": CtPacked(8),
    "compressed-tensors-w8-group": CtPacked(8),
    "compressed-tensors-w8a8-group": CtBytes(8),
    "compressed-tensors-w4a8": IntPerChannel(4),
    "compressed-tensors-w4a8-zeros": CtBytes(4),
    "compressed-tensors-w4a8-group": CtBytes(4),
    "compressed-tensors-w4a16": CtPacked(4),
    "compressed-tensors-w4a16-zeros": CtPacked(4),
    "compressed-tensors-w4a16-group": CtPacked(4),
    "compressed-tensors-fp8": Fp8PerChannel(),
    "compressed-tensors-fp8-block": Fp8Blocks(scale="weight_scale"),
    "compressed-tensors-mxfp8": Mx("e4m3"),
    "compressed-tensors-mxfp4": Mx("e2m1", weight="weight_packed", more=("weight_global_scale", "input_global_scale")),
    "compressed-tensors-nvfp4": NvFp4(),
    "quark-mxfp4": Mx("e2m1", more=_MODELOPT),
    "quark-int8": IntPerChannel(8, more=("weight_zero_point", "input_scale")),
    "quark-fp8": Fp8PerChannel(),
    "modelopt-fp8": Fp8PerChannel(),
    "modelopt-mxfp8": Mx("e4m3"),
    "modelopt-fp8-pb-wo": Fp8Blocks(scale="weight_scale", four=True),
    "modelopt-mxfp4": Mx("e2m1", more=_MODELOPT),
    "modelopt-w4a8-mxfp4-fp8": Mx("e2m1", more=_MODELOPT),
    "modelopt-nvfp4": NvFp4("weight", "weight_scale_2", divides=False),
    "modelopt-w4a16-nvfp4": NvFp4("weight", "weight_scale_2", divides=False),
    "auto-round-mxfp4": Mx("e2m1", weight="weight_packed"),
    "auto-round-mxfp8": Mx("e4m3"),
    "auto-round-nvfp4": NvFp4(),
    "auto-round-int4": Gptq(4),
    "auto-round-int4-zeros": Gptq(4),
    "auto-round-int4-group": Gptq(4),
    "auto-round-int8": Gptq(8),
    "auto-round-int8-group": Gptq(8),
    "gptq-int4": Gptq(4),
    "gptq-int4-zeros": Gptq(4),
    "gptq-int4-group": Gptq(4),
    "gptq-int8": Gptq(8),
    "gptq-int8-group": Gptq(8),
    "awq-int4": Awq(),
    "awq-int4-group": Awq(),
}
"""AutoRound's integers come in GPTQ's or AWQ's packing, GPTQ's in two versions; `stored_of` asks the section."""


def stored_of(name: str, section: Mapping[str, Any] | None = None, parts: Collection[str] = ()) -> Stored:
    """How a format stores a projection; of this package's own format, one of shared experts.

    Args:
        name: the format's stable name.
        section: the checkpoint's quantization_config, which says how integers are packed (`packing_format` of
            AutoRound, `checkpoint_format` of GPTQ).
        parts: names of a projection's tensors where they are at hand: DeepSeek-V4's files call the scales of FP8 blocks
            `scale`, which vLLM's model renames.

    Raises:
        CheckpointError: the format is known by name and cannot be read.
    """
    said = {key: str((section or {}).get(key) or "") for key in ("packing_format", "checkpoint_format")}
    if "awq" in said["packing_format"] and name.startswith("auto-round-int4"):
        return Awq()
    if name.startswith(OWN_PREFIX):
        return OwnMatrix(UseCase(name.removeprefix(OWN_PREFIX)))
    found = STORED.get(name)
    if found is None:
        raise CheckpointError(
            f"experts in the format {name!r} cannot be read; expected one of {', '.join(sorted(STORED))}. Use another "
            "checkpoint of this model."
        )
    if isinstance(found, Fp8Blocks) and "scale" in parts:
        return Fp8Blocks("scale", found.block)
    if isinstance(found, Gptq) and "v2" in said["checkpoint_format"]:
        return Gptq(found.bits, zero_is_one_less=False)
    return found
