"""Microscaling formats (MX): E4M3, E5M2 and E2M1 codes in groups of 32 that share one power-of-two scale.

Groups lie along the last dimension; a scale is E8M0, value 2^(byte-127). Codes are rounded half even and saturate.

Both rules take the group's scale from the exponent of its largest magnitude alone, so values in the top binade above
the format's largest one saturate (E4M3: 448 to 512). They differ in what they see of small groups:

    kernel   the bfloat16 bits, as the 950 kernels do; a group of bfloat16 subnormals is flushed to zero
    spec     the float32 value: OCP MX 1.0 section 6.3, floor(log2(amax)) - emax, the byte clamped to 0..254
"""

from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.numerics.switches import Rule

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


GROUP = 32
NAN_SCALE = 0xFF
_SPECIAL = 255  # biased exponent of Inf and NaN


MxScale = Literal["floor", "ceil"]
"""Whether a group's scale is the exponent of its largest magnitude, which may saturate, or the next one where it would.

The operator's own quantiser and msModelSlim take `floor`; llm-compressor and ModelOpt take the other for weights.
"""


def mx_quantise(x: Tensor, elem: Elem, rule: Rule = "kernel", scale: MxScale = "floor") -> tuple[Tensor, Tensor]:
    """bfloat16 or float32 [R, K] -> uint8 codes [R, K], uint8 E8M0 scales [R, ceil(K / 32)].

    With e the biased exponent of the group's largest magnitude: 255 (Inf or NaN in the group) gives scale 0xFF and NaN
    codes (E2M1 has none: 0); up to emax the scale is 0 and the multiplier 2^127; else e - emax. Codes round half even
    and saturate. Kernel: x is rounded to bfloat16 first, and e = 0 (zeros and subnormals only) gives scale 0 and signed
    zeros.
    """
    rows, k = x.shape
    groups = -(-k // GROUP)
    values = x.to(torch.bfloat16).float() if rule == "kernel" else x.float()
    values = pad(values, (0, groups * GROUP - k)).view(rows, groups, GROUP)
    exponent = _biased_exponents(values).amax(dim=2)
    special = exponent == _SPECIAL
    byte = (exponent - EMAX[elem]).clamp(min=0)
    if scale == "ceil":
        most = e8m0_value(byte.clamp(max=_SPECIAL - 1).to(torch.uint8)) * MAX_VALUE[elem]
        byte = byte + (values.abs().amax(dim=2) > most).to(byte.dtype)
    # 2^(127 - byte), the reciprocal of the scale. Exact: a product by a power of two that stays in range.
    multiplier = e8m0_value((254 - byte).to(torch.uint8))
    if rule == "kernel":
        multiplier = multiplier.where(exponent > 0, 0.0)
    scaled = (values * multiplier[:, :, None]).masked_fill(special[:, :, None], torch.nan)
    codes = encode(scaled, elem).view(rows, groups * GROUP)[:, :k]
    return codes.contiguous(), byte.masked_fill(special, NAN_SCALE).to(torch.uint8)


def mx_dequantise(codes: Tensor, scales: Tensor, elem: Elem) -> Tensor:
    """uint8 codes [..., K] and E8M0 scales [..., ceil(K / 32)] -> float32 [..., K]; scale 0xFF makes its group NaN."""
    return _scaled(decode(codes, elem), scales)


def mx_dequantise_bytes(stored: Tensor, scales: Tensor, elem: Elem) -> Tensor:
    """The same from bytes as operands store them: FP8 [..., K], or two E2M1 codes a byte [..., K/2]."""
    return _scaled(decode_bytes(stored, elem), scales)


def _scaled(values: Tensor, scales: Tensor) -> Tensor:
    *lead, k = values.shape
    factors = e8m0_value(scales)
    if k % GROUP:
        return values * factors.repeat_interleave(GROUP, dim=-1)[..., :k]
    return (values.view(*lead, k // GROUP, GROUP) * factors[..., None]).view(*lead, k)


def e8m0_value(scales: Tensor) -> Tensor:
    """uint8 E8M0 -> float32: 2^(byte - 127), NaN for 0xFF; exact, byte 0 is the float32 subnormal 2^-127."""
    byte = scales.to(torch.int32)
    # The byte is float32's exponent field; only its two ends need other bits.
    bits = (byte << 23).masked_fill(byte == 0, 0x00400000).masked_fill(byte == NAN_SCALE, 0x7FC00000)
    return bits.view(torch.float32)


def _biased_exponents(values: Tensor) -> Tensor:
    """float32 -> int32 exponent fields, which bfloat16 shares."""
    return (values.view(torch.int32) >> 23) & 0xFF
