"""How rows come home, in two ways.

- combine_comm_mode=0, `PlainReturn`: one row for each routed pair.
- combine_comm_mode=1, `MergedReturn`: one row for each token and card (operator_readme.txt, combineCommMode). The
  documents fix a float32 sum on the card with one bf16 rounding. The order is chosen here: k order on a card, cards in
  rank order at the source.
"""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.combine import RowForm, Slots, masked_rows, old_rows, remember, weighted_sum
from vllm_megamoe.ops.twin.routing import Arrivals, Received, Routes, rows_at


class PlainReturn:
    """How rows come home.

    Args:
        call: checked.
        routes: of this rank's tokens.
        form: of a row.
        weights: float32 [T, K] router weights that are still to be applied, None when the rows carry them.
    """

    def __init__(self, call: Call, routes: Routes, form: RowForm, weights: Tensor | None) -> None:
        self.call, self.routes, self.form, self.weights = call, routes, form, weights
        # Only a capacity can drop rows; then a byte behind each row says whether it was computed.
        self.flagged = call.buffer.max_recv_token_num > 0
        self.width = form.width + int(self.flagged)
        self.expected: list[int] = routes.counts.sum(dim=1).tolist()

    def awaited(self, arrivals: Arrivals, received: Received) -> list[int]:
        """Rows that each source rank waits for."""
        del received
        return arrivals.per_rank

    def chunks(self, rows: Tensor, received: Received, arrivals: Arrivals) -> list[Tensor]:
        """Computed rows [kept, H] -> uint8 [n, width] for each source rank, in the order in which its records came."""
        del received
        packed = self.form.pack(rows)
        if not self.flagged:
            if arrivals.in_order:
                return [packed]
            place = torch.empty_like(arrivals.order)
            place[arrivals.order] = torch.arange(len(place))
            return list(torch.split(rows_at(packed, place), arrivals.per_rank))
        back = torch.zeros(len(arrivals.order), self.width, dtype=torch.uint8)
        kept = arrivals.order[: arrivals.kept]
        back[kept, : self.form.width] = packed
        back[kept, -1] = 1
        return list(torch.split(back, arrivals.per_rank))

    def total(self, returned: Tensor) -> Tensor:
        """uint8 [P, width], rows of this rank's pairs in the order of its routes -> float32 [T, H]."""
        call, pairs = self.call, self.routes.pairs
        everywhere = len(pairs) == call.sent.numel() and not self.flagged and call.given.mask is None
        if everywhere and call.config.numerics.stale_slots != "old":
            place = torch.empty_like(pairs)
            place[pairs] = torch.arange(len(pairs))
            return weighted_sum(Slots(returned, place.view_as(call.sent), None, None, None), self.form, self.weights)
        landed = torch.ones(len(pairs), dtype=torch.bool)
        if self.flagged:
            landed = returned[:, -1] != 0
            returned = returned[:, :-1].contiguous()
        place = torch.zeros(call.sent.numel(), dtype=torch.int64)
        place[pairs] = torch.arange(len(pairs))
        filled = torch.zeros(call.sent.numel(), dtype=torch.bool)
        filled[pairs] = landed
        filled = filled.view_as(call.sent)
        stale = masked_rows(call)[:, None] | (call.sent & ~filled)
        slots = Slots(returned, place.view_as(filled), filled, stale if bool(stale.any()) else None, old_rows(call))
        total = weighted_sum(slots, self.form, self.weights)
        remember(call, pairs[landed], lambda: self.form.unpack(returned[landed]))
        return total


class MergedReturn:
    """How rows come home.

    Args:
        call: checked.
        routes: of this rank's tokens.
        form: of a row.
        weights: float32 [T, K] router weights that are still to be applied, None when the rows carry them.
    """

    def __init__(self, call: Call, routes: Routes, form: RowForm, weights: Tensor | None) -> None:
        self.call, self.form = call, form
        self.weighs = weights is not None
        self.width = form.width
        per_rank = call.buffer.experts_per_rank
        card = torch.where(call.sent, call.given.topk_ids // per_rank, -1)
        self.present = (card[:, :, None] == torch.arange(call.buffer.ep_world_size)).any(dim=1)
        self.expected: list[int] = self.present.sum(dim=0).tolist()

    def awaited(self, arrivals: Arrivals, received: Received) -> list[int]:
        """Rows that each source rank waits for."""
        return _groups(arrivals, received)[1]

    def chunks(self, rows: Tensor, received: Received, arrivals: Arrivals) -> list[Tensor]:
        """Computed rows [kept, H] -> uint8 [n, width] for each source rank: one per token that came, in token order."""
        group, per_rank = _groups(arrivals, received)
        order = arrivals.order[: arrivals.kept]
        place, weights = received.place, received.weights
        if place is None or weights is None:
            raise RuntimeError("records for merging must carry the token, k and the router weight")
        merged = merge_rows(rows, group[order], place[order, 1], weights[order] if self.weighs else None, sum(per_rank))
        if self.call.config.numerics.stale_slots == "nan":
            merged[group[arrivals.order[arrivals.kept :]]] = torch.nan
        # R15, then R18: per token and card one float32 sum and one bf16 rounding
        return list(torch.split(self.form.pack(merged.to(self.form.dtype)), per_rank))

    def total(self, returned: Tensor) -> Tensor:
        """uint8 [rows, width] by card, then token -> float32 [T, H]."""
        order = self.present.t().flatten().cumsum(0) - 1
        place = order.view(self.present.shape[1], -1).t().clamp(min=0)
        masked = masked_rows(self.call)
        stale = masked[:, None].expand_as(self.present) if bool(masked.any()) else None
        slots = Slots(returned, place, self.present, stale, old_rows(self.call, slots=False))
        return weighted_sum(slots, self.form, None)


def _groups(arrivals: Arrivals, received: Received) -> tuple[Tensor, list[int]]:
    """int64 [R], the merged row of each received one; rows of each source rank."""
    if received.place is None:
        raise RuntimeError("records for merging must carry the token")
    tokens = received.place[:, 0]
    ranks = torch.arange(len(arrivals.per_rank)).repeat_interleave(torch.tensor(arrivals.per_rank))
    stride = int(tokens.max()) + 1 if len(tokens) else 1
    keys, group = torch.unique(ranks * stride + tokens, return_inverse=True)
    return group, torch.bincount(keys // stride, minlength=len(arrivals.per_rank)).tolist()


def merge_rows(rows: Tensor, group: Tensor, k: Tensor, weights: Tensor | None, groups: int) -> Tensor:
    """float32 [groups, H]: for each token the sum of its rows on this card, in k order.

    Args:
        rows: [n, H].
        group: int64 [n], the merged row that each belongs to; one without any row is 0.
        k: int64 [n], its place among the token's experts.
        weights: float32 [n, 1], None when the rows carry them already.
        groups: number of merged rows.
    """
    total = torch.zeros(groups, rows.shape[1], dtype=torch.float32)
    if not len(rows):
        return total
    order = torch.argsort(group * (int(k.max()) + 1) + k)
    ordered = group[order]
    nth = torch.arange(len(ordered)) - torch.searchsorted(ordered, ordered)
    for n in range(int(nth.max()) + 1):
        chosen = order[nth == n]
        product = rows[chosen].float()
        if weights is not None:
            product = product * weights[chosen]
        # As in the plain combine: the first product is stored, later ones are added.
        total[group[chosen]] = product if n == 0 else total[group[chosen]] + product
    return total
