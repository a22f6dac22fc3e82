"""The operator's quantisers (op kernels arch22 and arch35), on intervals."""

import numpy as np
from numpy.typing import NDArray
from oracle import formats
from oracle.interval import F32, Interval, divide, hull, mul, point

SPEC_ERROR = 2.0**-21  # a documents' formula in fp32 costs a few roundings of 2^-24 each


def _row_amax(values: Interval) -> Interval:
    size = values.magnitude()
    return Interval(size.lo.max(axis=-1, keepdims=True), size.hi.max(axis=-1, keepdims=True))


def _where_zero(amax: Interval, values: Interval) -> Interval:
    """A row of zeros gives zeros."""
    return Interval(np.where(amax.hi == 0, np.float32(0), values.lo), np.where(amax.hi == 0, np.float32(0), values.hi))


def quantise_tokens(x: F32, rule: str) -> tuple[Interval, Interval]:
    """Dispatch: known x [R, K] -> q [R, K], scale [R, 1].

    kernel: s = amax / 127, x / s, truncated to fp16, half away from zero. spec: the same formula without fp16.
    """
    values = point(x)
    amax = _row_amax(values)
    scale = divide(amax, point(127.0))
    safe = Interval(np.where(amax.lo == 0, np.float32(1), scale.lo), np.where(amax.hi == 0, np.float32(1), scale.hi))
    quotient = divide(values, safe)
    if rule == "kernel":
        return quotient.monotone(formats.truncate_to_fp16).monotone(formats.half_away), scale
    return quotient.widen(SPEC_ERROR).monotone(formats.half_away), scale.widen(SPEC_ERROR)


def requantise(a: Interval, rule: str) -> tuple[Interval, Interval]:
    """Before the second GEMM: a [R, I] -> q [R, I], scale [R, 1].

    kernel: a * (127 / amax), half to even; the scale is amax / 127. spec: half away of a / s.
    """
    amax = _row_amax(a)
    safe = Interval(np.where(amax.lo == 0, np.float32(1e-30), amax.lo), np.where(amax.hi == 0, np.float32(1), amax.hi))
    scaled = mul(a, divide(point(127.0), safe))
    scaled = Interval(np.maximum(scaled.lo, -127.5), np.minimum(scaled.hi, 127.5))
    scale = divide(amax, point(127.0))
    if rule == "kernel":
        q = scaled.monotone(lambda v: np.rint(v))
        q = Interval(np.maximum(q.lo, -127), np.minimum(q.hi, 127))
        return _where_zero(amax, q), scale
    q = scaled.widen(SPEC_ERROR).monotone(formats.half_away)
    q = Interval(np.maximum(q.lo, -127), np.minimum(q.hi, 127))
    return _where_zero(amax, q), scale.widen(SPEC_ERROR)


def split_msd(q: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """int8 -> high and low int4: floor(q / 16) and (q & 15) - 8 (torch_api.txt, A8W4-INT)."""
    wide = q.astype(np.int64)
    return np.floor_divide(wide, 16).astype(np.int8), ((wide & 15) - 8).astype(np.int8)


def _mx_with(values: F32, exponent: NDArray[np.int64], elem: str) -> F32:
    """Blocks [..., 32] with a biased exponent of their largest number [..., 1] -> dequantised numbers."""
    byte = np.maximum(exponent - formats.EMAX[elem], 0)
    wide = values.astype(np.float64) * np.exp2(127.0 - byte)
    codes = formats.to_element(np.float32(wide), elem)
    return np.float32(np.where(exponent == 0, 0.0, codes * np.exp2(byte - 127.0)))


def _exponent(values: F32) -> NDArray[np.int64]:
    return ((values.view(np.uint32) >> 23) & 255).astype(np.int64)


def mx_quantise(x: Interval, elem: str) -> Interval:
    """[R, K] -> what the codes and scales of groups of 32 mean, [R, K].

    The scale exponent is floor(log2 amax) - emax, the element round-half-even and saturating. Where the interval leaves
    the exponent open, the values under each of them are allowed.
    """
    rows, width = x.shape
    padding = ((0, 0), (0, -width % 32))
    lo, hi = (np.pad(end, padding).reshape(rows, -1, 32) for end in (x.lo, x.hi))
    size = Interval(lo, hi).magnitude()
    low, high = (_exponent(end.max(axis=-1, keepdims=True)) for end in (size.lo, size.hi))
    both = Interval(_mx_with(lo, low, elem), _mx_with(hi, low, elem))
    for step in range(1, int((high - low).max(initial=0)) + 1):
        exponent = np.minimum(low + step, high)
        both = hull(both, Interval(_mx_with(lo, exponent, elem), _mx_with(hi, exponent, elem)))
    return Interval(both.lo.reshape(rows, -1)[:, :width].copy(), both.hi.reshape(rows, -1)[:, :width].copy())


def mx_encode(x: F32, elem: str) -> tuple[formats.Codes, formats.Codes]:
    """Known bf16 x [R, K] -> element codes [R, K] and scale bytes [R, ceil(K/32)], for pre-quantised calls."""
    rows, width = x.shape
    blocks = np.pad(x, ((0, 0), (0, -width % 32))).reshape(rows, -1, 32)
    exponent = _exponent(np.abs(blocks).max(axis=-1))
    byte = np.maximum(exponent - formats.EMAX[elem], 0)
    scaled = np.float32(blocks * np.exp2(127.0 - byte)[..., None])
    scaled = np.where(exponent[..., None] == 0, np.float32(0), scaled)
    codes = formats.encode(formats.to_element(scaled, elem), elem)
    return codes.reshape(rows, -1)[:, :width].copy(), byte.astype(np.uint8)
