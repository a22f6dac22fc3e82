"""Microscaling formats: groups of 32 along the last dimension share one power-of-two scale (E8M0, value 2^(byte-127)).

Both rules take the group's scale from the exponent of its largest magnitude alone, so values in the top binade above
the format's largest one saturate (E4M3: 448 to 512). They differ in what they see of small groups:

    kernel   the bfloat16 bits, as the 950 kernels do; a group of bfloat16 subnormals is flushed to zero
    spec     the float32 value: OCP MX 1.0 section 6.3, floor(log2(amax)) - emax, the byte clamped to 0..254
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.numerics.minifloat import EMAX, Elem, decode, decode_bytes, encode
from vllm_megamoe.numerics.switches import Rule

GROUP = 32
NAN_SCALE = 0xFF
_SPECIAL = 255  # biased exponent of Inf and NaN


def mx_quantise(x: Tensor, elem: Elem, rule: Rule = "kernel") -> tuple[Tensor, Tensor]:
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
