"""What a reading returns: a layer's experts as float64, and their codes and scales where the operator can hold them.

Letters: N output features, K input features; gate and up are [I, H], down is [H, I].
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from formats.readings.numbers import E2M1, E4M3, E5M2, E8M0, F64, Bits8, power_of_two_bytes
from numpy.typing import NDArray

Kind = Literal["int8", "int4", "e4m3", "e5m2", "e2m1"]
ELEMENT = {"e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1}


@dataclass(frozen=True)
class Codes:
    """Codes and scales that an exact mapping must carry over unchanged.

    Attributes:
        kind: int8 and int4: one scale per output channel; e4m3, e5m2, e2m1: one E8M0 byte per 32 inputs.
        codes: [N, K]; int64 values for integers, uint8 bit patterns (one per byte) for the others.
        scale: float64 [N] holding the stored number exactly, or uint8 [N, ceil(K/32)] E8M0 bytes.
    """

    kind: Kind
    codes: NDArray[Any]
    scale: NDArray[Any]

    def values(self) -> F64:
        """code * scale, [N, K] in float64 (exact: the products need fewer than 53 bits)."""
        if self.kind in ("int8", "int4"):
            return self.codes.astype(np.float64) * self.scale[:, None]
        k = self.codes.shape[1]
        return ELEMENT[self.kind][self.codes] * np.repeat(E8M0[self.scale], 32, axis=1)[:, :k]


@dataclass(frozen=True)
class Projection:
    """One projection of one expert.

    Attributes:
        values: float64 [N, K].
        codes: set where an integer or MX use case of the operator holds the values exactly.
        bias: float64 [N] of formats whose experts carry one (gpt-oss); the operator takes none.
    """

    values: F64
    codes: Codes | None = None
    bias: F64 | None = None

    @classmethod
    def of(cls, codes: Codes) -> "Projection":
        """A projection that is its codes times its scales."""
        return cls(codes.values(), codes)


@dataclass(frozen=True)
class Expert:
    """The three projections of an expert: gate and up [I, H], down [H, I]."""

    gate: Projection
    up: Projection
    down: Projection

    def __iter__(self) -> Any:
        return iter((self.gate, self.up, self.down))


@dataclass(frozen=True)
class Layer:
    """Routed experts in their order, and shared experts (none, or those that the checkpoint stores)."""

    experts: list[Expert]
    shared: list[Expert]


def expand(scale: F64, n: int, k: int, rows: int, columns: int) -> F64:
    """One scale per tile of `rows` x `columns` -> one per element [N, K]; the last tiles may be partial."""
    return np.repeat(np.repeat(scale, rows, axis=0)[:n], columns, axis=1)[:, :k]


def scaled_floats(kind: Kind, codes: Bits8, scale: F64) -> Projection:
    """Floating codes [N, K] times a scale [N, K] that is constant inside each 32 inputs.

    Where every scale is a power of two this is an MX tensor, and its E8M0 bytes are given too.
    """
    values = ELEMENT[kind][codes] * scale
    firsts = scale[:, ::32]
    assert np.array_equal(np.repeat(firsts, 32, axis=1)[:, : scale.shape[1]], scale)
    mx = power_of_two_bytes(firsts)
    return Projection(values, None if mx is None else Codes(kind, codes, mx))
