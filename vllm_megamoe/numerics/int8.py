"""INT8: tokens before dispatch, activations before the second GEMM, weights at load, and the split for INT4 GEMMs.

The device rounds in two different ways within one call (op kernel arch22): half away from zero at dispatch, half even
before the second GEMM. The documents' [z] rounds half up in magnitude in both places (operator_readme.txt). Roundings
that torch has no name for stand first.
"""

from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.numerics.switches import Fp16Overflow, Rule

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


LIMIT = 127.0

Bits = Literal[4, 8]
WEIGHT_LIMIT: dict[Bits, float] = {8: LIMIT, 4: 7.0}
"""Largest code of a weight, by its bits."""


def quantise_tokens(x: Tensor, rule: Rule = "kernel") -> tuple[Tensor, Tensor]:
    """Per-token INT8 before dispatch: float32 [R, K] -> int8 [R, K], float32 scale [R] = amax / 127.

    Kernel: true division, truncation to float16, half away from zero; it is 0/0 = NaN in a zero row, which the cast
    turns into 0. Spec: round(x / scale), ties away from zero, in one step. Both: a zero row gives codes 0, scale 0.
    """
    scale = x.abs().amax(dim=1) / LIMIT
    quotient = x / scale[:, None]
    if rule == "kernel":
        quotient = truncate_to_fp16(quotient).float()
    return _to_int8(half_away(quotient)), scale


def requantise(a: Tensor, rule: Rule = "kernel") -> tuple[Tensor, Tensor]:
    """Per-row INT8 before the second GEMM: float32 [R, I] -> int8 [R, I], float32 scale [R] = amax / 127.

    Kernel: multiplication by 127 / amax (0 for a zero row), half even. Spec: round(a / scale), ties away from zero.
    """
    amax = a.abs().amax(dim=1)
    scale = amax / LIMIT
    if rule == "spec":
        return _to_int8(half_away(a / scale[:, None])), scale
    # number / tensor would be reciprocal times number in torch, two roundings; the kernel divides once.
    factor = (torch.full_like(amax, LIMIT) / amax).masked_fill(amax == 0, 0.0)
    return _to_int8(torch.round(a * factor[:, None])), scale


_BLOCK = 2**20
"""Elements of a weight that are rounded at a time: temporaries in float32 take many times the room of the codes."""


def quantise_weight(w: Tensor, bits: Bits = 8) -> tuple[Tensor, Tensor]:
    """Symmetric integers per output channel: floats [N, K] -> int8 codes [N, K], float32 scale [N]; half even.

    scale = amax / 127, in 4 bits amax / 7. So INT4 codes lie in -7..7, as INT8's in -127..127: -8 is a legal code
    (IntExperts takes it), but the range that reaches it, amax / 7.5, cuts a channel's largest value by half a step
    wherever it is positive. A zero channel gives codes 0 and scale 1, so that no scale is zero.
    """
    limit = WEIGHT_LIMIT[bits]
    codes = torch.empty(w.shape, dtype=torch.int8, device=w.device)
    scale = torch.empty(w.shape[0], dtype=torch.float32, device=w.device)
    rows = max(1, _BLOCK // max(w.shape[1], 1))
    for start in range(0, w.shape[0], rows):
        block = slice(start, start + rows)
        amax = _largest(w[block])
        scale[block] = (amax / limit).masked_fill(amax == 0, 1.0)
        whole = w[block].to(torch.float32, copy=True).div_(scale[block, None]).round_()
        # Of finite rows that are no subnormals every quotient is in range: two passes less over the weight.
        plain = bool((torch.isfinite(amax) & ((amax == 0) | (amax > _NORMAL))).all())
        codes[block] = whole.to(torch.int8) if plain else _to_int8(whole, limit)
    return codes, scale


_NORMAL = 2.0**-100
"""Row maxima above it have a scale that is a normal float32, with all its bits."""


def _largest(w: Tensor) -> Tensor:
    """float32 [N], the largest magnitude of each row of [N, K]; NaN where there is one."""
    if w.dtype == torch.bfloat16:
        # Without their sign, floats are ordered as the integers of their bits, NaN last.
        return (w.view(torch.int16) & 0x7FFF).amax(dim=1).view(torch.bfloat16).float()
    return w.abs().amax(dim=1).float()


def split_msd(q: Tensor) -> tuple[Tensor, Tensor]:
    """Split INT8 into two INT4 digits: q = 16 * high + low + 8, both in -8..7 (operator_readme.txt, A8W4-INT)."""
    return q >> 4, (q & 0x0F) - 8


def _to_int8(whole: Tensor, limit: float = LIMIT) -> Tensor:
    """Whole floats -> int8; NaN gives 0, and a quotient that float32 subnormals pushed beyond the limit gives it.

    The floats are used up.
    """
    return whole.nan_to_num_(nan=0.0).clamp_(-limit, limit).to(torch.int8)
