"""One expert applied to rows, for each family of use cases; every rounding point in its place.

Rounding points of the kernel rule are those of the operator's kernels, arch22 (A2/A3) and arch35 (950).
The spec rule keeps the documents' quantisations and drops every other intermediate rounding; as fp32 code still rounds,
each of its steps is widened.
"""

from collections.abc import Callable

import numpy as np
from oracle import activations, formats, quantisers
from oracle.case import Case, Dense, Integer, Mx
from oracle.gemm import F64, gemm, integer_product
from oracle.interval import F32, Interval, add, hull, mul, point

Expert = Callable[[Interval, F32 | None], Interval]
FEW_ROUNDINGS = 2.0**-21


def _activate(case: Case, both: Interval, router: F32 | None) -> Interval:
    half = both.shape[-1] // 2
    a = activations.apply(case.act, both[:, :half], both[:, half:])
    return a if router is None else mul(a, point(router[:, None]))


def _leave(case: Case, y: Interval) -> Interval:
    """The expert's output: bf16 under the kernel rule.

    combine_comm_mode 1 adds the experts of a card in fp32 first, and operator_readme.txt does not say whether each is
    rounded to bf16 before: either is allowed.
    """
    if case.rule == "spec" or case.full_float32:
        return y
    rounded = y.monotone(formats.to_bf16)
    return hull(y, rounded) if case.combine_comm_mode else rounded


def dense_rows(case: Case, experts: Dense, e: int, x: Interval, router: F32 | None) -> Interval:
    """A16W16: both products and the activation leave in bf16."""
    rounded = case.rule == "kernel" and not case.full_float32

    def store(values: Interval) -> Interval:
        return values.monotone(formats.to_bf16) if rounded else values

    w13, w2 = (w[e].astype(np.float64) for w in (experts.w13, experts.w2))
    both = store(gemm(x, w13, exact_products=not case.full_float32, probable=case.probable_sums))
    a = store(_activate(case, both, router))
    return _leave(case, gemm(a, w2, exact_products=rounded, probable=case.probable_sums))


def _int_gemm(case: Case, q: Interval, weight: np.ndarray, scale: F32, bias: F32 | None) -> Interval:
    """Per-channel scaled product, before the token scale; `bias` is INT4's."""
    kept = scale
    if case.scale_bits == "tf32":  # in the multiplier only: the bias comes ready-made from outside
        kept = (scale.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    channel = point(kept[None, :])

    def fixpipe(values: Interval) -> Interval:
        product = mul(integer_product(values, weight), channel)
        if case.rule == "spec":
            return product.widen(FEW_ROUNDINGS)
        return product.monotone(lambda v: formats.to_fp16(v, case.fp16_overflow))

    if bias is None:
        return fixpipe(q)
    if case.rule == "spec":
        return _spec_msd(q, weight, scale)
    if not q.exact:
        return _hull_of_msd(q, fixpipe, weight, scale, bias)
    return _msd(q.lo, fixpipe, bias)


def _spec_msd(q: Interval, weight: np.ndarray, scale: F32) -> Interval:
    """The parts recombine to q w s; fp32 code rounds each of them, and together they are below 144 sum|w| s."""
    whole = mul(integer_product(q, weight), point(scale[None, :]))
    error = FEW_ROUNDINGS * 144 * np.abs(weight).astype(np.float64).sum(axis=1) * scale
    return Interval(np.float32(whole.lo - error), np.float32(whole.hi + error))


def _msd(q: F32, fixpipe: Callable[[Interval], Interval], bias: F32) -> Interval:
    """(16 hi + lo) + bias, each operation in fp32."""
    hi, lo = quantisers.split_msd(q.astype(np.int8))
    high, low = fixpipe(point(np.float32(hi))), fixpipe(point(np.float32(lo)))
    return add(add(mul(point(16.0), high), low), point(bias[None, :]))


def _hull_of_msd(
    q: Interval, fixpipe: Callable[[Interval], Interval], weight: np.ndarray, scale: F32, bias: F32
) -> Interval:
    """Where q is uncertain by delta: the value at q.lo, moved by at most delta |w| s and the fp16 steps of both parts.

    A step of fp16 is 2^-10 of the part; the parts are bounded by 8 sum|w| s.
    """
    base = _msd(q.lo, fixpipe, bias)
    delta = (q.hi - q.lo).astype(np.float64) @ np.abs(weight).astype(np.float64).T * scale
    steps = np.where(delta > 0, 17 * 2.0**-10 * 8 * np.abs(weight).astype(np.float64).sum(axis=1) * scale, 0)
    return Interval(np.float32(base.lo - delta - steps), np.float32(base.hi + delta + steps))


def integer_rows(case: Case, experts: Integer, e: int, q: Interval, scale: Interval, router: F32 | None) -> Interval:
    """A8W8-INT and A8W4-INT: fp16 after each product's channel scale, bf16 at the end."""

    b13, b2 = (b[e] if experts.bits == 4 else None for b in experts.biases())

    def product(q: Interval, token_scale: Interval, weight: np.ndarray, channel: F32, bias: F32 | None) -> Interval:
        scaled = mul(_int_gemm(case, q, weight, channel, bias), token_scale)
        return scaled.widen(FEW_ROUNDINGS) if case.rule == "spec" else scaled

    both = product(q, scale, experts.w13[e], experts.s13[e], b13)
    a = _activate(case, both, router)
    if case.rule == "spec":
        a = a.widen(FEW_ROUNDINGS)
    q2, scale2 = quantisers.requantise(a, case.rule)
    y = product(q2, scale2, experts.w2[e], experts.s2[e], b2)
    return _leave(case, y)


def _mx_weight(codes: formats.Codes, scales: formats.Codes, elem: str) -> F64:
    width = codes.shape[-1]
    return formats.decode(codes, elem) * formats.e8m0(scales).repeat(32, axis=-1)[:, :width]


def mx_rows(case: Case, experts: Mx, elem: str, e: int, x: Interval, router: F32 | None) -> Interval:
    """A8W8-FP, A8W4-FP, A4W4-FP: x is what the dispatched codes mean; bf16 after each product and the activation.

    The second product's input is quantised like dispatch, E4M3 where dispatch is E2M1.
    """

    def store(values: Interval) -> Interval:
        return values.monotone(formats.to_bf16) if case.rule == "kernel" else values.widen(FEW_ROUNDINGS)

    def product(x: Interval, codes: formats.Codes, scales: formats.Codes) -> Interval:
        return gemm(x, _mx_weight(codes, scales, experts.elem), probable=case.probable_sums)

    both = store(product(x, experts.w13[e], experts.s13[e]))
    a = store(_activate(case, both, router))
    a = quantisers.mx_quantise(a, "e4m3" if elem == "e2m1" else elem)
    return _leave(case, product(a, experts.w2[e], experts.s2[e]))
