"""Rows at both ends of the simulated device: how many a rank computes and sends back, and where they land.

Nothing reports what a rank leaves out. At home the kernel reads every slot of every token, also those that nothing
landed in during this call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import PeerError
from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.combine import RowForm, Slots, weighted_sum
from vllm_megamoe.ops.twin.routing import Arrivals
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.communicator import Memory
from vllm_megamoe.simulator.deviations import Deviations


class SimulatedHang(PeerError):
    """The device would spin for ever, or leave its memory, at this point."""


def capacity(call: Call, profile: Profile) -> int:
    """Rows that a rank has room for, 0 for any number; on A2/A3 auto counts the tokens of this call (op tiling)."""
    given = call.buffer.max_recv_token_num
    if given or not profile.is_a2_a3:
        return given
    buffer = call.buffer
    return len(call.sent) * buffer.ep_world_size * min(buffer.num_topk, buffer.experts_per_rank)


class SimulatedAicoreError(RuntimeError):
    """The device would end the process's stream with an AICore error at this point."""


def reject_overflow(received: Sequence[int], room: int, profile: Profile, wrong: Deviations) -> None:
    """950 clips only the dispatch copy; its GEMMs count on and wait for rows that never come (op kernel arch35).

    A2 and A3 lose the tail in silence, which is not for here, or end the call where that switch is on.

    Args:
        received: rows that every rank receives; all ranks look at the same numbers, so that all of them raise.
        room: of every rank, 0 for any number.

    Raises:
        SimulatedHang: more rows than room.
        SimulatedAicoreError: the same, on A2 and A3 with `overflow_ends`.
    """
    if profile.is_a2_a3 and wrong.overflow_ends and room and max(received) > room:
        raise SimulatedAicoreError(
            f"[{profile.name} simulated] {max(received)} rows came to a rank, max_recv_token_num={room}: AICore error, "
            "error code 507057."
        )
    if profile.is_950 and room and max(received) > room:
        raise SimulatedHang(
            f"[{profile.name} simulated] {max(received)} rows came to a rank, max_recv_token_num={room}: the device "
            "would hang here, or read and write out of bounds."
        )


def sent_back(call: Call, arrivals: Arrivals, profile: Profile, wrong: Deviations) -> Tensor:
    """bool [kept], computed rows that the combine sends home.

    All of them, except under the receive fault of A8W4-INT: there the running sum of the earlier experts' rows counts
    each row twice against the room (op kernel a3, CombineV2 before 2026-07-23).
    """
    every = torch.ones(arrivals.kept, dtype=torch.bool)
    room = capacity(call, profile)
    faulty = wrong.w4a8_receive or profile.name == "a3@9.1"
    if not faulty or not room or call.routed.l1.element is not AclDtype.INT4:
        return every
    before = 0
    for (_, start, stop), rows in zip(arrivals.slices(), _nonzero(arrivals.totals), strict=False):
        every[min(stop, start + max(0, room - 2 * before)) : stop] = False
        before += rows
    return every


def _nonzero(totals: Tensor) -> list[int]:
    return [rows for rows in totals.tolist() if rows]


@dataclass(frozen=True, slots=True)
class Landing:
    """The slots [T, K] of one call in a memory.

    Attributes:
        memory: of this rank.
        tokens: T of this rank.
        topk: K.
        form: of a row.
        record_bytes: stride of a dispatch record. On A2/A3 the slots lie behind tokens * K records, and a rank that
            writes into them counts with its own number of tokens (op kernel arch22); 0 where their place is fixed.
    """

    memory: Memory
    tokens: int
    topk: int
    form: RowForm
    record_bytes: int

    def base(self, tokens: int) -> int:
        """Where a rank with that many tokens believes the slots to begin."""
        return tokens * self.topk * self.record_bytes

    def write(self, rows: Tensor, pairs: Tensor, writer_tokens: Tensor) -> None:
        """Let rows land.

        Args:
            rows: uint8 [n, width].
            pairs: int64 [n], token * K + k.
            writer_tokens: int64 [n], T of the rank that each row comes from.
        """
        width = self.form.width
        for tokens in set(writer_tokens.tolist()):
            mine = writer_tokens == tokens
            start = self.base(tokens)
            area = self.memory.area(start, start + self.tokens * self.topk * width)
            area.view(-1, width)[pairs[mine]] = rows[mine]

    def total(self, weights: Tensor | None) -> Tensor:
        """float32 [T, H], the sum over all slots.

        Args:
            weights: float32 [T, K], None when the rows carry them already.
        """
        count, start = self.tokens * self.topk, self.base(self.tokens)
        held = self.memory.area(start, start + count * self.form.width).view(count, self.form.width)
        place = torch.arange(count).view(self.tokens, self.topk)
        filled = torch.ones(self.tokens, self.topk, dtype=torch.bool)
        return weighted_sum(Slots(held, place, filled, None, torch.zeros(1, self.form.hidden)), self.form, weights)
