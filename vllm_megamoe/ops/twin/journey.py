"""The way of a call's rows: out to their experts, through them, back into their tokens' slots, and summed."""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.dispatch import RecordForm
from vllm_megamoe.ops.twin.families import family_of
from vllm_megamoe.ops.twin.merged_return import MergedReturn
from vllm_megamoe.ops.twin.plain_return import PlainReturn
from vllm_megamoe.ops.twin.routing import make_arrivals, make_routes
from vllm_megamoe.ops.twin.rows import QUANTISED, RowForm
from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.ops.twin.shared import shared_rows
from vllm_megamoe.ops.twin.stale import undefined_rows
from vllm_megamoe.ops.twin.work import compute


class Journey:
    """Prepare all of a call that happens before the ranks meet.

    Args:
        call: checked.
        session: its conversation with the other ranks.
    """

    def __init__(self, call: Call, session: Session) -> None:
        buffer, raw = call.buffer, call.raw
        self.call, self.session = call, session
        self.family = family_of(call, call.routed)
        self.routes = make_routes(raw.topk_ids, call.sent, buffer.ep_world_size, buffer.experts_per_rank)
        form = RowForm(
            QUANTISED.get(buffer.combine_quant_mode), self.family.row_dtype, call.hidden, call.config.numerics.rule
        )
        merges = buffer.combine_comm_mode == 1
        self.weighs_early = buffer.topk_weights_type == 1
        weights = raw.topk_weights.float()
        returns = MergedReturn if merges else PlainReturn
        self.way_back = returns(call, self.routes, form, None if self.weighs_early else weights)
        tokens = self.family.pack(raw.x, raw.scales)
        self.form = RecordForm(tokens.shape[1], self.weighs_early or merges, merges)
        self.records = self.form.pack(tokens, self.routes, weights)

    def run(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [ranks, E], rows that come from each rank -> float32 sums [T, H], and int64 [E] rows per expert."""
        call, session, way_back = self.call, self.session, self.way_back
        arrivals = make_arrivals(counts, call.buffer.max_recv_token_num)
        chunks = torch.split(self.records, self.routes.counts.sum(dim=1).tolist())
        received = self.form.unpack(torch.cat(session.exchange(chunks, arrivals.per_rank, self.form.width)))
        try:
            weights = received.weights if self.weighs_early else None
            rows = compute(self.family, received.tokens, arrivals, weights, call.hidden)
            back = way_back.chunks(rows, received, arrivals)
            shared = shared_rows(call)
        except Exception:
            session.fail(way_back.awaited(arrivals, received), way_back.width)
            raise
        total = way_back.total(torch.cat(session.give_back(back, way_back.expected, way_back.width)))
        for rows in shared:
            total += rows.float()  # R16: shared experts after the routed sum, in index order, in fp32
        undefined = undefined_rows(call)
        if undefined is not None:
            total[undefined] = torch.nan
        return total, arrivals.totals
