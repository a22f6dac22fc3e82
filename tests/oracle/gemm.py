"""Matrix product with fp32 accumulation in an order that nobody promises."""

import numpy as np
from numpy.typing import NDArray
from oracle.interval import Interval

F64 = NDArray[np.float64]
U = 2.0**-24  # fp32 unit round-off


def lowest_bit(values: F64) -> F64:
    """The power of two of each number's last set bit; very large for 0."""
    mantissa, exponent = np.frexp(values)
    integer = (mantissa * 2.0**53).astype(np.int64)
    lowest = np.log2(np.maximum(integer & -integer, 1).astype(np.float64))
    return np.exp2(np.where(values == 0, 400.0, exponent - 53 + lowest))


def _grain(values: F64) -> F64:
    """Per row, the largest power of two of which all numbers of the row are multiples."""
    grain: F64 = lowest_bit(values).min(axis=-1)
    return grain


def gemm(x: Interval, weight: F64, *, exact_products: bool = True, probable: bool = False) -> Interval:
    """[R, K] times [N, K] -> [R, N] in fp32.

    K products are added with K - 1 roundings in some order, so the error is below K u sum |x||w|; products of fp32
    numbers are rounded themselves, which adds another u. Where every partial sum is a multiple of the product of both
    rows' grains and below 2^24 of them, no rounding happens at all, and the result is one number.

    For K in the thousands the sure bound is a hundred times the real error. `probable` takes 4 sqrt(K) u sum |x||w|
    instead, which independent roundings exceed with a probability below 2 exp(-4^2 / 2) = 7e-4 even at their largest
    (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019).
    """
    lo, hi = x.lo.astype(np.float64), x.hi.astype(np.float64)
    middle, radius = (lo + hi) / 2, (hi - lo) / 2
    size = np.abs(weight)
    absolute = np.maximum(np.abs(lo), np.abs(hi)) @ size.T
    centre = middle @ weight.T
    grain = _grain(middle)[:, None] * _grain(weight)[None, :]
    certain = (absolute <= 2.0**24 * grain) & ~(radius.any(axis=1))[:, None] & exact_products
    width = x.shape[-1]
    terms = 4 * np.sqrt(width) if probable else width + (0 if exact_products else 1)
    error = np.where(certain, 0.0, terms * U * absolute) + radius @ size.T
    return Interval(np.float32(centre - error), np.float32(centre + error))


def integer_product(q: Interval, weight: NDArray[np.int8]) -> Interval:
    """[R, K] times [N, K] -> [R, N] in int32, then to fp32; sums below 2^24 are exact in it."""
    lo, hi = q.lo.astype(np.float64), q.hi.astype(np.float64)
    wide = weight.astype(np.float64)
    middle, radius = (lo + hi) / 2 @ wide.T, (hi - lo) / 2 @ np.abs(wide).T
    return Interval(np.float32(middle - radius), np.float32(middle + radius))
