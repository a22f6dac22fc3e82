"""Number formats, taken from ml_dtypes and numpy: values of codes, rounding to a format."""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from oracle.interval import F32

Codes = NDArray[np.uint8]

ELEMENTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
# op kernel arch35: exponent of the largest number of a format
EMAX = {"e4m3": 8, "e5m2": 15, "e2m1": 2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}


def to_bf16(values: F32) -> F32:
    """Round to nearest even bfloat16, kept in float32."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def to_fp16(values: F32, overflow: str = "inf") -> F32:
    """Round to nearest even float16, kept in float32; beyond 65504 Inf or the largest number."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16).astype(np.float32)
    return np.clip(rounded, -65504, 65504).astype(np.float32) if overflow == "saturate" else rounded


def truncate_to_fp16(values: F32) -> F32:
    """Round toward zero to float16, kept in float32."""
    half = values.astype(np.float16)
    too_far = np.abs(half.astype(np.float32)) > np.abs(values)
    return np.where(too_far, np.nextafter(half, np.float16(0)), half).astype(np.float32)


def half_away(values: F32) -> F32:
    """Round to an integer, ties away from zero."""
    exact = values.astype(np.float64)
    return np.float32(np.copysign(np.floor(np.abs(exact) + 0.5), exact))


def to_element(values: F32, elem: str) -> F32:
    """Round to nearest even number of an 8- or 4-bit format, saturating, kept in float32."""
    limit = LARGEST[elem]
    return np.clip(values, -limit, limit).astype(ELEMENTS[elem]).astype(np.float32)


def encode(values: F32, elem: str) -> Codes:
    """One code per byte of the numbers of a format."""
    codes = values.astype(ELEMENTS[elem])
    if not np.array_equal(codes.astype(np.float32), values):
        raise ValueError(f"encode: not all values are {elem} numbers")
    return codes.view(np.uint8)


def decode(codes: Codes, elem: str) -> F32:
    """Value of each code."""
    return codes.view(ELEMENTS[elem]).astype(np.float32)


def e8m0(codes: Codes) -> NDArray[np.float64]:
    """Scale bytes to values: 2^(byte - 127), 0xFF is NaN."""
    return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))
