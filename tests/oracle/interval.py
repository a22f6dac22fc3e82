"""float32 intervals: what an fp32 computation may yield, whatever the order of its sums.

Every end of an interval is a float32 number, and every operation rounds to float32 as the operator does. Rounding
is monotone, so fl(lo1 + lo2) <= fl(a + b) <= fl(hi1 + hi2) for a, b inside: the ends are rigorous bounds, and where
nothing is uncertain (lo == hi) they are the exact bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Interval:
    """Elementwise lo <= value <= hi, both float32 of one shape."""

    lo: F32
    hi: F32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lo.shape

    def __getitem__(self, index: object) -> "Interval":
        return Interval(self.lo[index], self.hi[index])  # type: ignore[index]

    @property
    def exact(self) -> bool:
        """No element is uncertain."""
        return bool(np.array_equal(self.lo, self.hi))

    def monotone(self, function: Callable[[F32], F32]) -> "Interval":
        """Apply a function that never decreases."""
        return Interval(function(self.lo), function(self.hi))

    def widen(self, relative: float) -> "Interval":
        """Allow a relative error: the value is a float32 within `relative` of some number inside."""
        lo, hi = self.lo.astype(np.float64), self.hi.astype(np.float64)
        return Interval(
            np.float32(lo - np.abs(lo) * relative),
            np.float32(hi + np.abs(hi) * relative),
        )

    def magnitude(self) -> "Interval":
        """|value|."""
        inside = (self.lo <= 0) & (self.hi >= 0)
        ends = np.abs(self.lo), np.abs(self.hi)
        return Interval(np.where(inside, np.float32(0), np.minimum(*ends)), np.maximum(*ends))


def point(values: ArrayLike) -> Interval:
    """Known values; they must be float32 numbers."""
    array = np.asarray(values)
    exact = np.float32(array)
    if not np.array_equal(exact.astype(np.float64), array.astype(np.float64), equal_nan=True):
        raise ValueError("point() was given numbers that float32 cannot hold")
    return Interval(exact, exact)


def hull(first: Interval, second: Interval) -> Interval:
    """Either of the two."""
    return Interval(np.minimum(first.lo, second.lo), np.maximum(first.hi, second.hi))


def mul(first: Interval, second: Interval) -> Interval:
    """fp32 product."""
    with np.errstate(over="ignore", under="ignore"):
        corners = [a * b for a in (first.lo, first.hi) for b in (second.lo, second.hi)]
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners))


def add(first: Interval, second: Interval) -> Interval:
    """fp32 sum of two numbers."""
    return Interval(first.lo + second.lo, first.hi + second.hi)


def divide(first: Interval, second: Interval) -> Interval:
    """fp32 quotient; the divisor is above 0."""
    corners = [a / b for a in (first.lo, first.hi) for b in (second.lo, second.hi)]
    return Interval(np.minimum.reduce(corners), np.maximum.reduce(corners))
