"""The way back of combine_comm_mode=0: one row for each routed pair."""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.combine import Slots, weighted_sum
from vllm_megamoe.ops.twin.dispatch import Received
from vllm_megamoe.ops.twin.routing import Arrivals, Routes
from vllm_megamoe.ops.twin.rows import RowForm
from vllm_megamoe.ops.twin.stale import masked_rows, old_rows, remember


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
        back = torch.zeros(len(arrivals.order), self.width, dtype=torch.uint8)
        kept = arrivals.order[: arrivals.kept]
        back[kept, : self.form.width] = packed
        if self.flagged:
            back[kept, -1] = 1
        return list(torch.split(back, arrivals.per_rank))

    def total(self, returned: Tensor) -> Tensor:
        """uint8 [P, width], rows of this rank's pairs in the order of its routes -> float32 [T, H]."""
        call, pairs = self.call, self.routes.pairs
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
