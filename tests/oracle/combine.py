"""Back at the source: router weights, the order of sums, the shared experts, the last rounding."""

import numpy as np
from oracle import formats, quantisers
from oracle.case import Case, Rank
from oracle.gemm import U, lowest_bit
from oracle.interval import F32, Interval, add, mul, point

Rows = dict[int, Interval]  # k -> one token's expert output, without the slots that were not sent or were lost


def returned(case: Case, row: Interval) -> Interval:
    """What arrives of an expert's rows [R, H]: bf16, or MXFP8 of them (combine_quant_mode 3: E5M2, 4: E4M3)."""
    if case.combine_quant_mode == 0:
        return row
    return quantisers.mx_quantise(row, {3: "e5m2", 4: "e4m3"}[case.combine_quant_mode])


def _ordered(case: Case, rows: Rows, weights: F32) -> Interval | None:
    """fp32 products and sums in k order."""
    total: Interval | None = None
    for k in sorted(rows):
        term = rows[k] if case.topk_weights_type else mul(rows[k], point(weights[k]))
        total = term if total is None else add(total, term)
    return total


def _any_order(terms: list[Interval]) -> Interval:
    """A sum whose order the document leaves open: n - 1 roundings, each of at most u sum|term|, or none on a grid."""
    if len(terms) == 1:
        return terms[0]
    lo = np.sum([t.lo.astype(np.float64) for t in terms], axis=0)
    hi = np.sum([t.hi.astype(np.float64) for t in terms], axis=0)
    size = np.sum([t.magnitude().hi.astype(np.float64) for t in terms], axis=0)
    grain = np.min([lowest_bit(t.lo.astype(np.float64)) for t in terms], axis=0)
    exact = all(t.exact for t in terms) & (size <= 2.0**24 * grain)
    size = np.where(exact, 0.0, size * U * len(terms))
    return Interval(np.float32(lo - size), np.float32(hi + size))


def _per_card(case: Case, rows: Rows, weights: F32, cards: dict[int, int]) -> Interval | None:
    """combine_comm_mode 1: a card's experts of a token are added in fp32 and rounded to bf16 once, then the cards.

    The rows here allow an expert's output in bf16 as well as in fp32.
    """
    sums = []
    for card in sorted(set(cards.values())):
        mine = [k for k in sorted(rows) if cards[k] == card]
        terms = [rows[k] if case.topk_weights_type else mul(rows[k], point(weights[k])) for k in mine]
        if terms:
            sums.append(_any_order(terms).monotone(formats.to_bf16))
    return _any_order(sums) if sums else None


def finish(case: Case, rank: Rank, token: int, rows: Rows, shared: list[Interval], cards: dict[int, int]) -> Interval:
    """y [H] of one token; shared experts are added unweighted, in their order, before the one rounding to bf16."""
    width = rank.x.shape[1]
    weights = rank.topk_weights[token]
    total = _per_card(case, rows, weights, cards) if case.combine_comm_mode else _ordered(case, rows, weights)
    total = total if total is not None else point(np.zeros(width))
    for row in shared:
        total = add(total, row[token])
    if case.rule == "spec":
        total = total.widen(2.0**-21)
    return total if case.full_float32 else total.monotone(formats.to_bf16)
