"""One simulated call, from the operator's arguments to its results.

The way of its rows is the twin's, but every rank trusts its own numbers, and rows land in memory that all buffers of a
communicator share.
"""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.combine import QUANTISED, RowForm
from vllm_megamoe.ops.twin.families import family_of
from vllm_megamoe.ops.twin.header import facts_of
from vllm_megamoe.ops.twin.routing import Arrivals, RecordForm, join, make_arrivals, make_routes
from vllm_megamoe.ops.twin.run import compute, shared_rows
from vllm_megamoe.ops.twin.session import Meeting, Session
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.communicator import Memory, memory_at, own_address
from vllm_megamoe.simulator.deviations import Deviations, active_deviations
from vllm_megamoe.simulator.graph import as_one_kernel
from vllm_megamoe.simulator.host import OperatorArguments, check_call
from vllm_megamoe.simulator.kernel.landing import Landing, capacity, reject_overflow, sent_back
from vllm_megamoe.simulator.kernel.read import make_twin_buffer, overwrite_masked_ids, read_arguments

_INT8_RECORD_EXTRA = 512
"""Bytes behind the int8 row that A2/A3 reserve in a record for its scale (op tiling arch22)."""
_FLAG_BYTES = 1
"""Behind a returned row: whether the device would have sent it."""


class Journey:
    """Prepare all of a call that happens before the ranks meet.

    Args:
        call: as the kernel reads it.
        session: its conversation with the other ranks.
        memory: of this rank, where its tokens' rows land.
        profile, wrong: which device, and its deviations.
    """

    def __init__(self, call: Call, session: Session, memory: Memory, profile: Profile, wrong: Deviations) -> None:
        buffer, given = call.buffer, call.given
        self.call, self.session, self.profile, self.wrong = call, session, profile, wrong
        self.tokens = len(call.sent)
        self.family = family_of(call, call.routed)
        self.routes = make_routes(given.topk_ids, call.sent, buffer.ep_world_size, buffer.experts_per_rank)
        rows = RowForm(QUANTISED.get(buffer.combine_quant_mode), self.family.row_dtype, call.hidden, "kernel")
        self.landing = Landing(memory, self.tokens, buffer.num_topk, rows, _record_bytes(call, profile))
        self.early = buffer.topk_weights_type == 1
        tokens = self.family.pack(given.x, None)
        self.form = RecordForm(tokens.shape[1], self.early, False)
        self.records = self.form.pack(tokens, self.routes, given.topk_weights)

    def run(self, met: Meeting) -> tuple[Tensor, Tensor]:
        """What the ranks know of each other -> float32 sums [T, H], and int64 [E] rows per expert."""
        call, session = self.call, self.session
        room = capacity(call, self.profile)
        reject_overflow(met.received, room, self.profile, self.wrong)
        arrivals = make_arrivals(met.counts, room)
        sent: list[int] = self.routes.counts.sum(dim=1).tolist()
        records = session.exchange(torch.split(self.records, sent), arrivals.per_rank, self.form.width)
        received = self.form.unpack(records)
        width = self.landing.form.width + _FLAG_BYTES
        try:
            weights = received.weights if self.early else None
            rows = compute(self.family, received.tokens, arrivals, weights, call.hidden)
            back = self._back(rows, arrivals, width)
            shared = shared_rows(call)
        except Exception as error:
            session.fail(error, arrivals.per_rank, width)
            raise
        self._land(session.give_back(back, sent, width), torch.tensor(met.tokens), torch.tensor(sent))
        total = self.landing.total(None if self.early else call.given.topk_weights)
        for rows in shared:
            total += rows.float()
        return total, arrivals.totals

    def _back(self, rows: Tensor, arrivals: Arrivals, width: int) -> list[Tensor]:
        """Computed rows [kept, H] -> uint8 [n, width] for each rank, in the order in which its records came."""
        back = torch.zeros(len(arrivals.order), width, dtype=torch.uint8)
        done = sent_back(self.call, arrivals, self.profile, self.wrong)
        back[arrivals.order[: arrivals.kept]] = join(self.landing.form.pack(rows), done.to(torch.uint8)[:, None])
        return list(torch.split(back, arrivals.per_rank))

    def _land(self, returned: Tensor, tokens: Tensor, sent: Tensor) -> None:
        """Rows into this rank's memory, each where the rank that computed it takes its slot to be.

        Args:
            returned: uint8 [P, width] in the order of this rank's routes, so by computing rank.
            tokens, sent: int64 [ranks], T of every rank and rows that this rank sent to it.
        """
        rows, landed = returned[:, :-_FLAG_BYTES], returned[:, -1] != 0
        writers = tokens.repeat_interleave(sent)
        self.landing.write(rows[landed], self.routes.pairs[landed], writers[landed])


def _record_bytes(call: Call, profile: Profile) -> int:
    """Bytes of a dispatch record on A2/A3; on 950 slots do not depend on the number of tokens."""
    if not profile.is_a2_a3:
        return 0
    return call.hidden + _INT8_RECORD_EXTRA if call.buffer.dispatch_quant_mode else 2 * call.hidden


def npu_mega_moe(profile: Profile, a: OperatorArguments) -> tuple[Tensor, Tensor]:
    """y bf16 [T, H] and int32 [E], as the device would return them.

    Raises:
        RuntimeError: rejected by the device's host checks, or nothing that the twin can compute.
        PeerError: where the device would hang.
    """
    result: tuple[Tensor, Tensor] = as_one_kernel(_run, profile, a)
    return result


def _run(profile: Profile, a: OperatorArguments) -> tuple[Tensor, Tensor]:
    address = own_address(a.context)
    memory = memory_at(address)
    if address and (memory is None or memory.freed):
        raise RuntimeError(f"[{profile.name} simulated] the buffer's memory was freed; the device would read elsewhere")
    if memory is None:
        check_call(profile, a)
        return _without_peers(a)
    buffer, config = make_twin_buffer(a, memory)
    session = Session(buffer, config)
    wrong = active_deviations()
    try:
        check_call(profile, a)
        call = read_arguments(a, buffer, profile)
        overwrite_masked_ids(a)
        journey = Journey(call, session, memory, profile, wrong)
    except Exception as error:
        # The peers would spin; here they learn why.
        session.reject(error)
        raise
    try:
        total, received = journey.run(
            session.meet(lambda: facts_of(call, memory.number), journey.routes.counts, len(a.x))
        )
    except Exception:
        session.abandon()
        raise
    memory.calls += 1
    return total.to(torch.bfloat16), received.to(torch.int32)


def _without_peers(a: OperatorArguments) -> tuple[Tensor, Tensor]:
    """A dead buffer's call: it knows no peer and no memory, so nothing arrives. A device may also fail or hang here."""
    experts = a.moe_expert_num // a.ep_world_size
    return torch.zeros(a.x.shape, dtype=torch.bfloat16), torch.zeros(experts, dtype=torch.int32)
