"""What a conversion costs, by quantisers of a few lines each: the stated losses of the table are measured with these.

A loss is the rms of the error relative to the rms of the weights, in per cent, over one matrix. It belongs to a
distribution: the figures in kinds.py are of Gaussian weights in matrices of 64 rows and 128 to 7168 columns,
first stored in the source format, then converted. Rounding is to nearest, ties to even.

The exponent of a group of 32 has two rules in use: `floor` (OCP Microscaling 1.0: floor(log2 amax) minus the largest
exponent of the element, which clips what lies between the largest number and the next power of two) and `fit` (one more
where floor would clip).
"""

from collections.abc import Callable
from functools import cache

import ml_dtypes
import numpy as np
from formats.readings.numbers import F64

COLUMNS = (128, 512, 2048, 7168)
ROWS = 64
ELEMENTS = {"e4m3": (ml_dtypes.float8_e4m3fn, 8, 448.0), "e2m1": (ml_dtypes.float4_e2m1fn, 2, 6.0)}


def loss(before: F64, after: F64) -> float:
    """Per cent."""
    return float(100 * np.sqrt(np.mean((after - before) ** 2) / np.mean(before**2)))


def to_bf16(values: F64) -> F64:
    """bfloat16."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def to_int(values: F64, largest: int) -> F64:
    """Symmetric integers with one float32 scale per row, amax at the largest code."""
    scale = (np.abs(values).max(axis=1, keepdims=True) / largest).astype(np.float32).astype(np.float64)
    scale[scale == 0] = 1
    return np.clip(np.rint(values / scale), -largest, largest) * scale


def to_mx(values: F64, element: str, rule: str = "floor", group: int = 32) -> F64:
    """MXFP8 (e4m3) or MXFP4 (e2m1)."""
    dtype, emax, limit = ELEMENTS[element]
    n, k = values.shape
    parts = values.reshape(n, k // group, group)
    amax = np.abs(parts).max(axis=2, keepdims=True)
    exponent = np.floor(np.log2(np.where(amax == 0, 1, amax))) - emax
    if rule == "fit":
        exponent += amax / 2.0**exponent > limit
    scaled = np.clip(parts / 2.0**exponent, -limit, limit)
    return (scaled.astype(dtype).astype(np.float64) * 2.0**exponent).reshape(n, k)


TARGETS: dict[str, Callable[[F64], F64]] = {
    "a16w16": to_bf16,
    "a8w8-int": lambda w: to_int(w, 127),
    "a8w4-int": lambda w: to_int(w, 7),
    "a8w8-fp": lambda w: to_mx(w, "e4m3"),
    "a8w4-fp": lambda w: to_mx(w, "e2m1"),
    "a4w4-fp": lambda w: to_mx(w, "e2m1"),
}
"""Use case -> what its weights are after a conversion from other numbers."""


def _grouped_int4(w: F64, group: int) -> F64:
    """int4 in groups, amax at -8 or 7.5 as usual: scale amax/7.5, bfloat16."""
    parts = w.reshape(len(w), -1, group)
    scale = to_bf16(np.abs(parts).max(axis=2, keepdims=True) / 7.5)
    return (np.clip(np.rint(parts / scale), -8, 7) * scale).reshape(w.shape)


def _fp8(w: F64, rows: int, columns: int, pow2: bool = False) -> F64:
    """e4m3 with a float32 scale per tile."""
    result = np.empty_like(w)
    for i in range(0, w.shape[0], rows):
        for j in range(0, w.shape[1], columns):
            tile = w[i : i + rows, j : j + columns]
            scale = float(np.float32(np.abs(tile).max() / 448))
            scale = float(2.0 ** np.ceil(np.log2(scale))) if pow2 else scale
            result[i : i + rows, j : j + columns] = (
                np.clip(tile / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
            )
    return result


def _nvfp4(w: F64) -> F64:
    """e2m1 with an e4m3 scale per 16 and a float32 for the tensor."""
    top = float(np.float32(np.abs(w).max() / (6 * 448)))
    parts = w.reshape(len(w), -1, 16)
    exact = np.abs(parts).max(axis=2, keepdims=True) / 6 / top
    scale = np.clip(exact, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * top
    codes = np.clip(parts / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return (codes * scale).reshape(w.shape)


SOURCES: dict[str, Callable[[F64], F64]] = {
    "bf16": to_bf16,
    "fp16": lambda w: w.astype(np.float16).astype(np.float64),
    "int8": lambda w: to_int(w, 127),
    "int4": lambda w: to_int(w, 7),
    "int4-group": lambda w: _grouped_int4(w, 128),
    "int4-group32": lambda w: _grouped_int4(w, 32),
    "fp8-block": lambda w: _fp8(w, 128, 128),
    "fp8-rows": lambda w: _fp8(w, 1, w.shape[1]),
    "fp8-block-ue8m0": lambda w: _fp8(w, 128, 128, pow2=True),
    "mxfp8": lambda w: to_mx(w, "e4m3"),
    "mxfp4": lambda w: to_mx(w, "e2m1"),
    "nvfp4": _nvfp4,
}
"""Kind of numbers -> Gaussian weights stored as such."""


def gaussian(columns: int) -> F64:
    """Weights of standard deviation 0.02, the same on every call."""
    return np.random.default_rng(columns).standard_normal((ROWS, columns)) * 0.02


@cache
def _stored(source: str) -> list[F64]:
    return [SOURCES[source](gaussian(columns)) for columns in COLUMNS]


@cache
def measured(source: str, target: str) -> tuple[float, ...]:
    """Loss of a conversion in per cent, one figure for each width."""
    return tuple(loss(stored, TARGETS[target](stored)) for stored in _stored(source))
