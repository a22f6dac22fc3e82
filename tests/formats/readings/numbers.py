"""Values of number formats, each from its definition: bfloat16, FP8 E4M3 and E5M2, FP4 E2M1, E8M0 scales.

Sources: OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2), OCP Microscaling Formats 1.0 (E2M1, E8M0).
The tables are checked against ml_dtypes in test_numbers.py.
"""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Ints = NDArray[np.int64]
Bits8 = NDArray[np.uint8]


def bf16_values(bits: NDArray[np.uint16]) -> F64:
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _small_float(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """A code without its special values: sign, exponent (0 is subnormal), mantissa."""
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1.0 + mantissa * 2.0**-mantissa_bits) * 2.0 ** (exponent - bias)


def _e4m3(code: int) -> float:
    """Bias 7; S.1111.111 is NaN, there is no infinity, the largest number is 448."""
    return float("nan") if code & 0x7F == 0x7F else _small_float(code, 4, 3, 7)


def _e5m2(code: int) -> float:
    """Bias 15; exponent 31 is infinity or NaN as in IEEE 754."""
    if (code >> 2) & 31 == 31:
        return float("nan") if code & 3 else (-float("inf") if code >> 7 else float("inf"))
    return _small_float(code, 5, 2, 15)


E4M3: F64 = np.array([_e4m3(code) for code in range(256)])
E5M2: F64 = np.array([_e5m2(code) for code in range(256)])
E2M1: F64 = np.array([_small_float(code, 2, 1, 1) for code in range(16)])
"""Value of each code: 0 .5 1 1.5 2 3 4 6, then the same with a sign."""
E8M0: F64 = np.array([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")])
"""Value of each byte: 2^(byte - 127); 255 is NaN."""


def e4m3_values(codes: Bits8) -> F64:
    """Value of each E4M3 byte."""
    return E4M3[codes]


def e5m2_values(codes: Bits8) -> F64:
    """Value of each E5M2 byte."""
    return E5M2[codes]


def e2m1_values(codes: Bits8) -> F64:
    """Value of each E2M1 code, one code per byte (0 to 15)."""
    return E2M1[codes]


def e8m0_values(codes: Bits8) -> F64:
    """Value of each E8M0 byte."""
    return E8M0[codes]


def power_of_two_bytes(scales: F64) -> Bits8 | None:
    """E8M0 bytes of scales that are all powers of two in its range; None when one is not."""
    mantissa, exponent = np.frexp(scales)  # scale = mantissa * 2**exponent, mantissa in [0.5, 1)
    byte = exponent - 1 + 127
    if not np.all((mantissa == 0.5) & (byte >= 0) & (byte <= 254)):
        return None
    return byte.astype(np.uint8)
