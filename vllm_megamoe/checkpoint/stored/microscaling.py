"""MX formats: FP8 or FP4 codes with an E8M0 scale for each 32 inputs, and FP8 in blocks, which may be one.

Codes and scale bytes are copied: deriving scales anew from values would round what is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.matrix import Matrix, MxMatrix, RealMatrix
from vllm_megamoe.checkpoint.stored.part import (
    CODES_FP8,
    E8M0,
    FLOATS,
    Part,
    anything,
    matrix,
    no_nan_scale,
    per_group,
    per_row,
    positive,
    single,
)
from vllm_megamoe.numerics.mx import GROUP, Elem

_EXPONENT_SHIFT, _MANTISSA = 23, (1 << 23) - 1
_NO_POWERS = "{} holds scales that are no powers of two"


@dataclass(frozen=True, slots=True)
class Mx:
    """Codes of one element type and a scale byte per 32 inputs.

    FP8 codes are e4m3 [N, K]; FP4 codes are packed [N, K/2] with the even input in the low nibble, in every tool
    (msModelSlim, compressed-tensors, Quark, ModelOpt, AutoRound, DeepSeek-V4).

    Attributes:
        elem: e4m3 or e2m1.
        weight, scale: names of the two tensors.
        more: parts that the tool writes and nobody needs.
    """

    elem: Elem
    weight: str = "weight"
    scale: str = "weight_scale"
    more: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        packed = self.elem == "e2m1"
        codes: tuple[torch.dtype, ...] = (torch.uint8, torch.int8) if packed else (*CODES_FP8, torch.uint8)
        shapes = (lambda n, k: ((n, k // 2),)) if packed else matrix()
        found = (Part(self.weight, codes, shapes), Part(self.scale, E8M0, per_group(GROUP)))
        unused = (*FLOATS, torch.uint8, torch.int64)
        return (*found, *(Part(name, unused, anything, required=False) for name in self.more))

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        scale = no_nan_scale(tensors[self.scale], f"{where}.{self.scale}")
        return MxMatrix(tensors[self.weight].view(torch.uint8), scale, self.elem)


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """e4m3 codes [N, K] and one factor for each block of `block` x `block` (DeepSeek-V3, Qwen3-FP8, GLM-FP8, MiniMax).

    Despite its name `weight_scale_inv` multiplies. Where every factor is a power of two (`scale_fmt: ue8m0`, or E8M0
    bytes) the block is MX groups that share a byte, exactly; the bits are looked at, the config's word is not trusted.

    Attributes:
        scale: name of the factors' tensor.
        block: rows and columns of a block; the last ones may be short.
        four: whether the factors are [N/128, 1, K/128, 1] (ModelOpt FP8_PB_WO).
    """

    scale: str = "weight_scale_inv"
    block: tuple[int, int] = (128, 128)
    four: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        height, width = self.block
        return (
            Part("weight", CODES_FP8, matrix()),
            Part(self.scale, (*FLOATS, *E8M0), lambda n, k: (self._shape(-(-n // height), -(-k // width)),)),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        height, width = self.block
        codes, factors = tensors["weight"], tensors[self.scale]
        if self.four:
            factors = factors[:, 0, :, 0]
        if factors.dtype in E8M0:
            powers: Tensor | None = no_nan_scale(factors, f"{where}.{self.scale}")
        else:
            factors = positive(factors, f"{where}.{self.scale}")
            powers = _as_e8m0(factors)
        if powers is not None and width % GROUP == 0:
            scale = powers.repeat_interleave(height, 0)[:rows].repeat_interleave(width // GROUP, 1)
            return MxMatrix(codes.view(torch.uint8), scale[:, : -(-columns // GROUP)].contiguous(), "e4m3")
        spread = factors.float().repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
        return RealMatrix(codes.float() * spread, _NO_POWERS.format(f"{where}.{self.scale}"))

    def _shape(self, high: int, wide: int) -> tuple[int, ...]:
        return (high, 1, wide, 1) if self.four else (high, wide)


@dataclass(frozen=True, slots=True)
class Fp8PerChannel:
    """e4m3 codes [N, K] with a factor for each channel, or one for all; exact as MX only where they are powers of two.

    Attributes:
        scale: name of the factors' tensor.
        more: parts that the tool writes for activations.
    """

    scale: str = "weight_scale"
    more: tuple[str, ...] = ("input_scale", "weight_offset")

    @property
    def parts(self) -> tuple[Part, ...]:
        unused = (*FLOATS, torch.int8)
        return (
            Part("weight", CODES_FP8, matrix()),
            Part(self.scale, FLOATS, lambda n, k: (*per_row(n, k), *single(n, k))),
            *(Part(name, unused, anything, required=False) for name in self.more),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        factors = positive(tensors[self.scale], f"{where}.{self.scale}").reshape(-1).expand(rows)
        powers = _as_e8m0(factors)
        if powers is not None:
            scale = powers[:, None].expand(rows, -(-columns // GROUP)).contiguous()
            return MxMatrix(tensors["weight"].view(torch.uint8), scale, "e4m3")
        return RealMatrix(tensors["weight"].float() * factors[:, None], _NO_POWERS.format(f"{where}.{self.scale}"))


def _as_e8m0(factors: Tensor) -> Tensor | None:
    """float32 powers of two -> their E8M0 bytes, whose value is 2^(byte - 127); None where one is no power of two."""
    bits = factors.contiguous().view(torch.int32)
    exponent = bits >> _EXPONENT_SHIFT
    # Subnormal powers have exponent 0 and a mantissa; 2^-127 is the byte 0 and no other subnormal is an E8M0 number.
    if bool((bits & _MANTISSA).any()) or bool((exponent == 0).any()):
        return None
    return exponent.to(torch.uint8)
