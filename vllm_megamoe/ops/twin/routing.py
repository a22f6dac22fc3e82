"""Which row goes to which expert, and in which order rows stand at both ends."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Routes:
    """The (token, k) pairs that this rank sends, ordered by expert, then token.

    Attributes:
        pairs: int64 [P], token * K + k.
        counts: int64 [ranks, E], pairs for each expert of each rank.
        topk: K.
    """

    pairs: Tensor
    counts: Tensor
    topk: int

    @property
    def tokens(self) -> Tensor:
        """int64 [P], the token of each pair."""
        return self.pairs // self.topk


def make_routes(topk_ids: Tensor, sent: Tensor, ranks: int, experts_per_rank: int) -> Routes:
    """Sort the pairs.

    Args:
        topk_ids: int32 [T, K].
        sent: bool [T, K], pairs that take part; their ids are in range.
        ranks, experts_per_rank: rank r holds experts r * experts_per_rank and on.
    """
    pairs = sent.flatten().nonzero().flatten()
    experts = topk_ids.flatten()[pairs].to(torch.int64)
    # Stable, so that the rows of an expert stay in token order, as on the device.
    order = experts.argsort(stable=True)
    counts = torch.bincount(experts, minlength=ranks * experts_per_rank)
    return Routes(pairs[order], counts.view(ranks, experts_per_rank), topk_ids.shape[1])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows at the experts' rank.

    Attributes:
        order: int64 [R], positions of received rows by expert, then source rank, then token; received rows stand by
            source rank, then expert, then token.
        kept: rows of `order` that fit into max_recv_token_num; the tail is dropped.
        totals: rows routed to each local expert, dropped ones included.
        per_rank: rows from each source rank.
    """

    order: Tensor
    kept: int
    totals: Tensor
    per_rank: list[int]

    def slices(self) -> list[tuple[int, int, int]]:
        """(expert, start, stop) into the kept rows, for the experts that have any."""
        found, start = [], 0
        for expert, rows in enumerate(self.totals.tolist()):
            stop = min(start + rows, self.kept)
            if stop > start:
                found.append((expert, start, stop))
            start += rows
        return found


def make_arrivals(counts: Tensor, max_recv_token_num: int) -> Arrivals:
    """Place what arrives.

    Args:
        counts: int64 [ranks, E], rows from each rank for each local expert.
        max_recv_token_num: capacity over all local experts, 0 for no limit. Rows beyond it are dropped in silence,
            expert by expert, as op kernel arch22 does.
    """
    ranks, experts = counts.shape
    rows = int(counts.sum())
    if ranks == 1:
        order = torch.arange(rows)
    else:
        expert_of_row = torch.arange(experts).repeat(ranks).repeat_interleave(counts.flatten())
        order = expert_of_row.argsort(stable=True)
    kept = min(rows, max_recv_token_num) if max_recv_token_num else rows
    return Arrivals(order, kept, counts.sum(dim=0), counts.sum(dim=1).tolist())
