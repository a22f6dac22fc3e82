"""Which row goes to which expert, in which order rows stand at both ends, and what travels for a row.

A record is the token's bytes, and behind them what the modes need at the experts' rank: router weight, token and k.
Parts of several dtypes stand behind one another, uint8 [rows, bytes] (`join`, `cut`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Widths = list[tuple[int, torch.dtype]]


def join(*parts: Tensor) -> Tensor:
    """Tensors [rows, ...] with the same number of rows -> uint8 [rows, bytes]."""
    flat = [part.reshape(part.shape[0], math.prod(part.shape[1:])).contiguous().view(torch.uint8) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def rows_at(rows: Tensor, places: Tensor) -> Tensor:
    """uint8 [n, bytes] at int64 places, none below 0: copied row by row, where `rows[places]` goes byte by byte."""
    return rows.index_select(0, places)


def cut(records: Tensor, widths: Widths) -> list[Tensor]:
    """The inverse of `join`.

    Args:
        records: uint8 [rows, bytes].
        widths: elements and dtype of each part, in order.
    """
    parts, at = [], 0
    for elements, dtype in widths:
        size = elements * dtype.itemsize
        # The copy is needed: a view as a wider dtype wants aligned rows, and `contiguous` would leave a single row.
        parts.append(records[:, at : at + size].clone(memory_format=torch.contiguous_format).view(dtype))
        at += size
    return parts


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
    whole = len(pairs) == sent.numel()
    experts = topk_ids.flatten() if whole else topk_ids.flatten()[pairs]
    # Stable, so that the rows of an expert stay in token order, as on the device.
    order = experts.argsort(stable=True)
    counts = torch.bincount(experts, minlength=ranks * experts_per_rank)
    return Routes(order if whole else pairs[order], counts.view(ranks, experts_per_rank), topk_ids.shape[1])


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

    @property
    def in_order(self) -> bool:
        """Whether received rows stand by expert already: those of one rank do."""
        return len(self.per_rank) == 1

    def slices(self) -> list[tuple[int, int, int]]:
        """(expert, start, stop) into the kept rows, for the experts that have any."""
        found, start = [], 0
        for expert, rows in enumerate(self.totals.tolist()):
            if not rows:  # most of them, where few rows come
                continue
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


@dataclass(frozen=True, slots=True)
class RecordForm:
    """What a record holds.

    Attributes:
        token_bytes: of the token.
        with_weight: whether the router weight follows (topk_weights_type=1, and for merging on the card).
        with_place: whether token and k follow (for merging on the card).
    """

    token_bytes: int
    with_weight: bool
    with_place: bool

    @property
    def width(self) -> int:
        """Bytes of a record."""
        return self.token_bytes + 4 * self.with_weight + 8 * self.with_place

    def pack(self, tokens: Tensor, routes: Routes, weights: Tensor) -> Tensor:
        """Token bytes [T, token_bytes], float32 weights [T, K] -> uint8 [P, width], a record per routed pair."""
        parts = [rows_at(tokens, routes.tokens)]
        if self.with_weight:
            parts.append(weights.flatten()[routes.pairs])
        if self.with_place:
            place = torch.stack([routes.tokens, routes.pairs % routes.topk], dim=1)
            parts.append(place.to(torch.int32))
        return join(*parts)

    def unpack(self, records: Tensor) -> "Received":
        """uint8 [R, width] taken apart."""
        widths: Widths = [(self.token_bytes, torch.uint8)]
        if not self.with_weight and not self.with_place:
            return Received(records, None, None)
        widths += [(1, torch.float32)] * self.with_weight + [(2, torch.int32)] * self.with_place
        tokens, *rest = cut(records, widths)
        weights = rest.pop(0) if self.with_weight else None
        return Received(tokens, weights, rest[0].to(torch.int64) if self.with_place else None)


@dataclass(frozen=True, slots=True)
class Received:
    """Records at the experts' rank.

    Attributes:
        tokens: uint8 [R, token_bytes].
        weights: float32 [R, 1].
        place: int64 [R, 2]: token on its source rank, and k.
    """

    tokens: Tensor
    weights: Tensor | None
    place: Tensor | None
