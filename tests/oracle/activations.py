"""The four activations (operator_readme.txt, 激活函数公式), on intervals.

Where sigmoid or tanh is not saturated, fp32 code may be wrong by a few units in the last place; both are exact in
fp32 where the true value is nearer to 0, 1/2 or 1 than to any other fp32 number.
"""

from dataclasses import dataclass

import numpy as np
from oracle.interval import F32, Interval, add, mul, point

# exp within 1 ulp (2^-23), the sum and the quotient 2^-24 each, one more product: below 2^-21
TRANSCENDENTAL = 2.0**-21


@dataclass(frozen=True, slots=True)
class Activation:
    """Name and parameters as `mega_moe` takes them; None is the documents' default."""

    name: str = "swiglu"
    clamp: float | None = None
    alpha: float = 1.702
    beta: float = 1.0
    linear_beta: float | None = None


def _sigmoid(z: Interval) -> Interval:
    def true(values: F32) -> F32:
        with np.errstate(over="ignore"):
            return np.float32(1 / (1 + np.exp(-values.astype(np.float64))))

    wide = z.monotone(true).widen(TRANSCENDENTAL)
    known = (z.lo >= 32) | (z.hi <= -120) | ((z.lo == 0) & (z.hi == 0))
    exact = z.monotone(true)
    wide = Interval(np.where(z.hi < -80, np.float32(0), wide.lo), wide.hi)  # exp overflows fp32 there
    return Interval(
        np.where(known & (exact.lo == exact.hi), exact.lo, wide.lo),
        np.where(known & (exact.lo == exact.hi), exact.hi, np.minimum(wide.hi, np.float32(1))),
    )


def _tanh(z: Interval) -> Interval:
    wide = z.monotone(lambda v: np.float32(np.tanh(v.astype(np.float64)))).widen(TRANSCENDENTAL)
    wide = Interval(np.maximum(wide.lo, np.float32(-1)), np.minimum(wide.hi, np.float32(1)))
    positive, negative = z.lo >= 16, z.hi <= -16
    return Interval(
        np.where(positive, np.float32(1), np.where(negative, np.float32(-1), wide.lo)),
        np.where(positive, np.float32(1), np.where(negative, np.float32(-1), wide.hi)),
    )


def _silu(z: Interval) -> Interval:
    return mul(z, _sigmoid(z))


def _clamp_above(z: Interval, limit: float) -> Interval:
    return z.monotone(lambda v: np.minimum(v, np.float32(limit)))


def _clip(z: Interval, limit: float) -> Interval:
    return z.monotone(lambda v: np.clip(v, np.float32(-limit), np.float32(limit)))


def _scaled_tanh(z: Interval, beta: float) -> Interval:
    return mul(point(np.float32(beta)), _tanh(z.monotone(lambda v: v / np.float32(beta))))


def apply(act: Activation, gate: Interval, up: Interval) -> Interval:
    """gate [R, I], up [R, I] -> [R, I] in fp32."""
    limit = act.clamp or np.inf  # 0 and None: no clamp
    if act.name == "situglu":
        linear = up if act.linear_beta is None else _scaled_tanh(up, act.linear_beta)
        return mul(mul(_scaled_tanh(gate, act.beta), _sigmoid(gate)), linear)
    if act.name == "swiglu":
        return mul(_silu(_clamp_above(gate, limit)), _clip(up, limit))
    if act.name == "swiglustep":
        return mul(_clamp_above(_silu(gate), limit), _clip(up, limit))
    if act.name == "swigluoai":
        bounded = _clamp_above(gate, limit)
        slope = _sigmoid(mul(point(np.float32(act.alpha)), bounded))
        return mul(mul(bounded, slope), add(_clip(up, limit), point(np.float32(act.beta))))
    raise ValueError(f"the oracle knows no activation {act.name!r}")
