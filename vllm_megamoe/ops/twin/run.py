"""The steps of a call, in order: out to the experts, through them, back into the tokens' slots, and summed.

Shared experts run beside it: every local token, no dispatch, no router weight (operator_readme.txt, shared experts).
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.settings import Settings, active_settings
from vllm_megamoe.ops.twin.call import Call, Group
from vllm_megamoe.ops.twin.combine import QUANTISED, RowForm, undefined_rows
from vllm_megamoe.ops.twin.families import Family, family_of
from vllm_megamoe.ops.twin.header import facts_of
from vllm_megamoe.ops.twin.read_call import check_product
from vllm_megamoe.ops.twin.routing import Arrivals, RecordForm, make_arrivals, make_routes, rows_at
from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.ops.twin.state import state_of
from vllm_megamoe.ops.twin.way_back import MergedReturn, PlainReturn


def shared_rows(call: Call) -> list[Tensor]:
    """Rows [T, H] of each shared expert of this rank, in index order."""
    if call.shared is None:
        return []
    family = family_of(call, call.shared)
    records = family.pack(call.given.x, call.given.scales)
    return [family.expert_rows([(expert, 0, len(records))], records, None) for expert in range(call.shared.l1.count)]


BATCH_ROWS = 256
"""Experts with few rows run together up to so many: few enough that what lies between the GEMMs stays small."""


def batches(groups: Iterable[Group]) -> Iterator[list[Group]]:
    """Consecutive groups together, as long as they have no more than BATCH_ROWS rows in all; larger ones alone."""
    batch: list[Group] = []
    for group in groups:
        if batch and group[2] - batch[0][1] > BATCH_ROWS:
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


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
    for batch in batches(arrivals.slices()):
        first, last = batch[0][1], batch[-1][2]
        chosen = slice(first, last) if arrivals.in_order else order[first:last]
        tokens = records[chosen] if isinstance(chosen, slice) else rows_at(records, chosen)
        row_weights = None if weights is None else weights[chosen]
        groups = [(expert, start - first, stop - first) for expert, start, stop in batch]
        rows[first:last] = family.expert_rows(groups, tokens, row_weights)
    return rows


class Journey:
    """Prepare all of a call that happens before the ranks meet.

    Args:
        call: checked.
        session: its conversation with the other ranks.
    """

    def __init__(self, call: Call, session: Session) -> None:
        buffer, given = call.buffer, call.given
        self.call, self.session = call, session
        self.family = family_of(call, call.routed)
        self.routes = make_routes(given.topk_ids, call.sent, buffer.ep_world_size, buffer.experts_per_rank)
        form = RowForm(
            QUANTISED.get(buffer.combine_quant_mode), self.family.row_dtype, call.hidden, call.config.numerics.rule
        )
        merges = buffer.combine_comm_mode == 1
        self.weighs_early = buffer.topk_weights_type == 1
        weights = given.topk_weights.float()
        returns = MergedReturn if merges else PlainReturn
        self.way_back = returns(call, self.routes, form, None if self.weighs_early else weights)
        tokens = self.family.pack(given.x, given.scales)
        self.form = RecordForm(tokens.shape[1], self.weighs_early or merges, merges)
        self.records = self.form.pack(tokens, self.routes, weights)

    def run(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [ranks, E], rows that come from each rank -> float32 sums [T, H], and int64 [E] rows per expert."""
        call, session, way_back = self.call, self.session, self.way_back
        arrivals = make_arrivals(counts, call.buffer.max_recv_token_num)
        chunks = torch.split(self.records, self.routes.counts.sum(dim=1).tolist())
        received = self.form.unpack(session.exchange(chunks, arrivals.per_rank, self.form.width))
        try:
            weights = received.weights if self.weighs_early else None
            rows = compute(self.family, received.tokens, arrivals, weights, call.hidden)
            back = way_back.chunks(rows, received, arrivals)
            shared = shared_rows(call)
        except Exception as error:
            session.fail(error, way_back.awaited(arrivals, received), way_back.width)
            raise
        total = way_back.total(session.give_back(back, way_back.expected, way_back.width))
        for rows in shared:
            total += rows.float()  # R16: shared experts after the routed sum, in index order, in fp32
        undefined = undefined_rows(call)
        if undefined is not None:
            total[undefined] = torch.nan
        return total, arrivals.totals


def run_call(buffer: SymmBuffer, read: Callable[[Settings], Call]) -> tuple[Tensor, Tensor]:
    """Run one call.

    Args:
        buffer: of the call.
        read: gives the checked call under the settings that hold, or raises what is wrong with it. It runs once the
            conversation is open, so that whatever is rejected reaches the other ranks.
    """
    config, state = active_settings() or buffer.settings, state_of(buffer)
    session = Session(buffer, config)
    try:
        if state.destroyed:
            remedy = "Make a new one with get_symm_buffer_for_mega_moe, and destroy it after its last call."
            raise rejection("sym_buffer", "a destroyed buffer", "a live one", "torch_api.txt, sym_buffer", remedy)
        call = read(config)
        journey = Journey(call, session)
    except Exception as error:
        # The peers must not wait for a call that will not come.
        session.reject(error)
        raise
    try:
        met = session.meet(lambda: facts_of(call, state.number), journey.routes.counts, len(call.given.x))
        # All ranks look at the same numbers here, so that all of them reject, or none.
        check_product(call.given, buffer, config, call.window, met.tokens, met.received)
        total, received = journey.run(met.counts)
    except Exception:
        session.abandon()
        raise
    _overwrite_masked_ids(call)
    state.calls_completed += 1
    y = total if call.is_float32 else total.to(torch.bfloat16)  # R17: the one rounding of y, half even
    return y, received.to(torch.int32)


def _overwrite_masked_ids(call: Call) -> None:
    """Ids of masked rows become num_experts in the caller's memory; of a strided tensor in a copy (op aclnn)."""
    given = call.given
    if given.mask is not None and given.topk_ids.is_contiguous():
        given.topk_ids[given.mask == 0] = call.buffer.num_experts
