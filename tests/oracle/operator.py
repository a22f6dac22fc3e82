"""The expected result of a call on every rank, from its logical terms."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from oracle import combine, quantisers
from oracle.case import Case, Dense, Experts, Integer, Mx
from oracle.interval import F32, Interval, point
from oracle.pipelines import dense_rows, integer_rows, mx_rows
from oracle.routing import kept, sent_ids, slots_by_expert


@dataclass(frozen=True, slots=True)
class Expected:
    """y as bounds [T, H], counts [E_local] and what topk_ids holds after the call, of one rank."""

    y: Interval
    expert_token_nums: NDArray[np.int32]
    topk_ids: NDArray[np.int32]


def _apply(case: Case, experts: Experts, e: int, x: F32, elem: str | None, router: F32 | None) -> Interval:
    """Expert e applied to source rows x [R, H], from dispatch to its output row."""
    if isinstance(experts, Dense):
        return dense_rows(case, experts, e, point(x), router)
    if isinstance(experts, Integer):
        q, scale = quantisers.quantise_tokens(x, case.rule)
        return integer_rows(case, experts, e, q, scale, router)
    assert isinstance(experts, Mx)
    assert elem is not None
    given = case.ranks[0].codes is not None
    dispatched = point(x) if given else quantisers.mx_quantise(point(x), elem)
    return mx_rows(case, experts, elem, e, dispatched, router)


def _routed_rows(case: Case) -> dict[tuple[int, int], combine.Rows]:
    """(rank, token) -> k -> what came back."""
    arrived: dict[tuple[int, int], combine.Rows] = {}
    for e, slots in enumerate(kept(case, slots_by_expert(case))):
        if not slots:
            continue
        x = np.stack([case.ranks[s.rank].x[s.token] for s in slots])
        router = np.array([case.ranks[s.rank].topk_weights[s.token, s.k] for s in slots], np.float32)
        rows = _apply(case, case.experts, e, x, case.act_elem, router if case.topk_weights_type else None)
        rows = combine.returned(case, rows)
        for slot, lo, hi in zip(slots, rows.lo, rows.hi, strict=True):
            arrived.setdefault((slot.rank, slot.token), {})[slot.k] = Interval(lo, hi)
    return arrived


def expected(case: Case) -> list[Expected]:
    """What every rank gets back."""
    arrived = _routed_rows(case)
    counts = np.array([len(slots) for slots in slots_by_expert(case)], np.int32)
    results = []
    for r, rank in enumerate(case.ranks):
        ids = sent_ids(rank, case.num_experts)
        elem = case.shared_elem or case.act_elem
        shared = [
            _apply(case, rank.shared, e, rank.x, elem, None)
            for e in range(len(rank.shared.w13) if rank.shared is not None else 0)
            if rank.shared is not None
        ]
        rows = [
            combine.finish(
                case,
                rank,
                t,
                arrived.get((r, t), {}),
                shared,
                {k: int(i) // case.experts_per_rank for k, i in enumerate(ids[t])},
            )
            for t in range(len(rank.x))
        ]
        own = slice(r * case.experts_per_rank, (r + 1) * case.experts_per_rank)
        y = Interval(np.stack([row.lo for row in rows]), np.stack([row.hi for row in rows]))
        results.append(Expected(y, counts[own], ids))
    return results
