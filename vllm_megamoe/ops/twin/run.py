"""Shared experts: every local token, no dispatch, no router weight (operator_readme.txt, shared experts).

At the experts' rank: received records into output rows.

The way of a call's rows: out to their experts, through them, back into their tokens' slots, and summed.

The steps of a call, in order.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import active_settings
from vllm_megamoe.ops.twin.call import Call, Lists, RawCall, dtype_from, group_arguments
from vllm_megamoe.ops.twin.checks.call import read_call
from vllm_megamoe.ops.twin.checks.profile import check_meeting
from vllm_megamoe.ops.twin.combine import QUANTISED, RowForm, undefined_rows
from vllm_megamoe.ops.twin.facts import facts_of
from vllm_megamoe.ops.twin.families import Family, family_of
from vllm_megamoe.ops.twin.routing import Arrivals, RecordForm, make_arrivals, make_routes
from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.ops.twin.way_back import MergedReturn, PlainReturn


def shared_rows(call: Call) -> list[Tensor]:
    """Rows [T, H] of each shared expert of this rank, in index order."""
    if call.shared is None:
        return []
    family = family_of(call, call.shared)
    records = family.pack(call.raw.x, call.raw.scales)
    return [family.expert(expert, records, None) for expert in range(call.shared.l1.count)]


def compute(family: Family, records: Tensor, arrivals: Arrivals, weights: Tensor | None, hidden: int) -> Tensor:
    """uint8 [R, bytes] as received -> rows [kept, H] by expert, then source rank, then token.

    Args:
        family: arithmetic of the use case.
        records: as received; dropped ones are never looked at.
        arrivals: their places.
        weights: float32 [R, 1] router weights that multiply the activation, None when combine applies them.
        hidden: H.
    """
    order = arrivals.order[: arrivals.kept]
    rows = torch.empty(arrivals.kept, hidden, dtype=family.row_dtype)
    for expert, start, stop in arrivals.slices():
        chosen = order[start:stop]
        row_weights = None if weights is None else weights[chosen]
        rows[start:stop] = family.expert(expert, records[chosen], row_weights)
    return rows


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


def run_call(
    buffer: SymmBuffer,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    x_active_mask: Tensor | None,
    scales: Tensor | None,
    lists: tuple[Lists, Lists],
    formats: Sequence[int],
    shapes: Sequence[int],
    types: Sequence[int],
    activation: tuple[str, float | None, Mapping[str, float]],
) -> tuple[Tensor, Tensor]:
    """Run one call; the arguments are those of `mega_moe_op`, grouped."""
    config = active_settings() or buffer.settings
    session = Session(buffer, config)
    try:
        declared = [dtype_from(code) for code in types]
        weights = group_arguments(lists, formats, shapes, declared)
        raw = RawCall(x, topk_ids, topk_weights, x_active_mask, scales, *weights, declared[4], *activation)
        call = read_call(raw, buffer, config)
        journey = Journey(call, session)
    except Exception as error:
        # The peers must not wait for a call that will not come.
        session.reject(error)
        raise
    try:
        met = session.meet(facts_of(call), journey.routes.counts, len(x))
        # All ranks look at the same numbers here, so that all of them reject, or none.
        check_meeting(call, met.tokens, met.received)
        total, received = journey.run(met.counts)
    except Exception:
        session.abandon()
        raise
    _overwrite_masked_ids(call)
    buffer.calls_completed += 1
    y = total if call.is_float32 else total.to(torch.bfloat16)  # R17: the one rounding of y, half even
    return y, received.to(torch.int32)


def _overwrite_masked_ids(call: Call) -> None:
    """Ids of masked rows become num_experts in the caller's memory; of a strided tensor in a copy (op aclnn)."""
    raw = call.raw
    if raw.mask is not None and raw.topk_ids.is_contiguous():
        raw.topk_ids[raw.mask == 0] = call.buffer.num_experts
