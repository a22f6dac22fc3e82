"""E4M3, E5M2 and E2M1: codes to values, and values to codes with half-even rounding and saturation."""

from functools import cache
from typing import Literal

import torch
from torch import Tensor

Elem = Literal["e4m3", "e5m2", "e2m1"]

# Largest finite value, and the exponent of its power of two (emax): OCP MX specification 1.0, section 5.3.
MAX_VALUE: dict[Elem, float] = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
EMAX: dict[Elem, int] = {"e4m3": 8, "e5m2": 15, "e2m1": 2}

TORCH_DTYPE: dict[Elem, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""torch's dtype of a code; E2M1 has none that holds one code in a byte."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Midpoints between neighbours; a value on one goes to the neighbour with the even code.
_E2M1_MIDDLE = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


@cache
def _table(elem: Elem) -> Tensor:
    """float32 value of every code."""
    if elem == "e2m1":
        return torch.tensor(_E2M1 + tuple(-v for v in _E2M1), dtype=torch.float32)
    return torch.arange(256, dtype=torch.uint8).view(TORCH_DTYPE[elem]).to(torch.float32)


@cache
def _pair_table() -> Tensor:
    """Both float32 values of every byte of two E2M1 codes, as one int64 word: a gather of words is twice as fast."""
    every = torch.arange(256, dtype=torch.int64)
    pairs = torch.stack([_table("e2m1")[every & 0x0F], _table("e2m1")[every >> 4]], dim=-1)
    return pairs.view(torch.int64).flatten()


def decode(codes: Tensor, elem: Elem) -> Tensor:
    """uint8 codes, one a byte (E2M1: the low four bits, sign in bit 3) -> float32 of the same shape."""
    return _gather(_table(elem), codes)


def decode_bytes(stored: Tensor, elem: Elem) -> Tensor:
    """uint8 as operands store it -> float32 [..., C]: FP8 [..., C], or E2M1 [..., C/2] with the low nibble first."""
    if elem != "e2m1":
        return decode(stored, elem)
    return _gather(_pair_table(), stored).view(torch.float32)


def _gather(table: Tensor, codes: Tensor) -> Tensor:
    # index_select on one dimension is several times faster than table[codes], and than torch's cast from E4M3.
    return table.to(codes.device).index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)


def encode(x: Tensor, elem: Elem) -> Tensor:
    """float32 -> uint8 codes: nearest, ties to even, beyond the range to the largest finite value; keeps -0.

    NaN gives the format's NaN; E2M1 has none and gives 0.
    """
    limited = x.float().clamp(-MAX_VALUE[elem], MAX_VALUE[elem])
    if elem != "e2m1":
        # torch's own cast rounds half even, but beyond the range it gives NaN, Inf or the maximum, by format and
        # version; hence the clamp.
        return limited.to(TORCH_DTYPE[elem]).view(torch.uint8)
    magnitude = limited.abs()
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for lower, middle in enumerate(_E2M1_MIDDLE):
        up = magnitude > middle if lower % 2 == 0 else magnitude >= middle
        code += up.to(torch.uint8)
    sign = torch.signbit(limited) & ~torch.isnan(limited)
    return code | (sign.to(torch.uint8) << 3)
