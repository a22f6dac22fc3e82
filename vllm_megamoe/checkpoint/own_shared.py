"""Shared experts in the package's own format: each projection as codes and scales, whichever way they are run later.

config.json's section says, beside `layers` (see checkpoint.own),

    "shared": {"model.layers.3.mlp.shared_experts": {"use_case": "a8w8-fp", "element": "e4m3", "source": "bf16"}}

and each of gate_proj, up_proj and down_proj [N, K] of such a module is

    codes    BF16 [N, K]; I8 [N, K]; F8_E4M3 or F8_E5M2 [N, K]; U8 [N, K/2], two FP4 codes a byte, the even input low
    codes_sf none for BF16; F32 [N] for I8; U8 [N, ceil(K/32)], E8M0 bytes, for FP8 and FP4

They are no operands: where the plan fuses them they are cut to the routed experts' width, and on vLLM's own path its
loaders cut them for the ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.matrix import DenseMatrix, IntMatrix, Matrix, MxMatrix, RealMatrix
from vllm_megamoe.checkpoint.stored.part import Part, Shape, matrix, no_nan_scale, per_group, positive
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.operands import KINDS
from vllm_megamoe.numerics.mx import EMAX, GROUP
from vllm_megamoe.profiles.use_cases import UseCase

_CODES: dict[str, torch.dtype] = {
    "dense": torch.bfloat16,
    "int8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e2m1": torch.uint8,
}


def _halves(n: int, k: int) -> tuple[Shape, ...]:
    return ((n, k // 2),)


def _row(n: int, k: int) -> tuple[Shape, ...]:
    return ((n,),)


@dataclass(frozen=True, slots=True)
class OwnMatrix:
    """One projection of shared experts.

    Attributes:
        use_case: that it was converted for.
    """

    use_case: UseCase

    @property
    def parts(self) -> tuple[Part, ...]:
        kinds = [kind for kind in KINDS[self.use_case] if kind in _CODES]
        shapes = _halves if "e2m1" in kinds else matrix()
        codes = Part("codes", tuple(_CODES[kind] for kind in kinds), shapes)
        if "dense" in kinds:
            return (codes,)
        if "int8" in kinds:
            return codes, Part("codes_sf", (torch.float32,), _row)
        return codes, Part("codes_sf", (torch.uint8,), per_group(GROUP))

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        codes = tensors["codes"]
        kind = next(kind for kind in KINDS[self.use_case] if _CODES.get(kind) == codes.dtype)
        if kind == "dense":
            return DenseMatrix(codes)
        if kind == "int8":
            return IntMatrix(codes, positive(tensors["codes_sf"], f"{where}.codes_sf"), 8)
        elem = next(elem for elem in EMAX if elem == kind)
        return MxMatrix(codes.view(torch.uint8), no_nan_scale(tensors["codes_sf"], f"{where}.codes_sf"), elem)


def tensors_of(found: Matrix, where: str) -> dict[str, Tensor]:
    """The inverse of `OwnMatrix.read`.

    Raises:
        CheckpointError: numbers that the format has no place for.
    """
    if isinstance(found, DenseMatrix) and found.w.dtype == torch.bfloat16:
        return {"codes": found.w.contiguous()}
    if isinstance(found, IntMatrix) and found.bits == 8:
        return {"codes": found.codes.contiguous(), "codes_sf": found.scale.contiguous()}
    if isinstance(found, MxMatrix):
        return {"codes": found.codes.contiguous().view(_CODES[found.elem]), "codes_sf": found.scale.contiguous()}
    what = "free numbers" if isinstance(found, RealMatrix) else type(found).__name__
    raise CheckpointError(
        f"{where}: {what}; expected BF16, INT8, FP8 or FP4 codes of shared experts. Name another use case for them."
    )
