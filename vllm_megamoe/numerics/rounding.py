"""Roundings that torch has no name for."""

import torch
from torch import Tensor

from vllm_megamoe.numerics.switches import Fp16Overflow

FP16_MAX = 65504.0


def half_away(x: Tensor) -> Tensor:
    """Round to the nearest integer, ties away from zero: the kernels' CAST_ROUND. float -> the same float dtype."""
    # trunc(x + 0.5) would be wrong for 0.5 - ulp, whose sum rounds up to 1.
    whole = torch.trunc(x)
    return whole + torch.where((x - whole).abs() >= 0.5, torch.sign(x), torch.zeros_like(x))


def truncate_to_fp16(x: Tensor) -> Tensor:
    """float32 -> float16 toward zero: the kernels' CAST_TRUNC. Values beyond float16's range go to its largest."""
    nearest = x.to(torch.float16)
    too_far = nearest.float().abs() > x.abs()
    bits = nearest.view(torch.int16)
    # One step toward zero is one less in the magnitude bits, whatever the sign.
    return torch.where(too_far, bits - 1, bits).view(torch.float16)


def to_fp16(x: Tensor, overflow: Fp16Overflow = "inf") -> Tensor:
    """float32 -> float16, half even; `overflow` says what lies beyond 65504: `inf` or `saturate`."""
    return (x.clamp(-FP16_MAX, FP16_MAX) if overflow == "saturate" else x).to(torch.float16)


def truncate_scale(scale: Tensor) -> Tensor:
    """Drop the low 13 bits of float32 scales: sign, exponent and 10 mantissa bits stay (mask 0xFFFFE000)."""
    return (scale.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
