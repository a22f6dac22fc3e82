"""Counters of one layer on one rank, on the device, so that a graph that is replayed counts as well.

A call costs the device one addition; steps are counted by one layer for all that run with it. Nothing of the host sees
a replay, and nothing here waits for the device: the counters are read elsewhere, between steps (`layer.load_report`).
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.plan.capacity import Capacity, step_calls

StepKind = Literal["served", "idle", "warm_up"]
"""What a step's rows are: requests' (on some rank), those that keep an idle data-parallel rank in step with the others,
or the engine's own before it serves."""


def always_served() -> StepKind:
    """For layers that run without an engine."""
    return "served"


@dataclass(slots=True)
class ExpertLoad:
    """Counted since the layer was made, without the engine's profile run and warm-up.

    Attributes:
        counts: int64 [experts_per_rank], rows that each expert of this rank has received.
        by_calls: int64 [most calls of a step + 1], steps by how many calls they made: one addition counts both.
        dropped: int64 [], rows beyond `max_recv_token_num`, which the operator drops in silence (its counts go on
            reporting them); None where the plan allows no drop.
        largest: int64 [], most rows that a call has brought to this rank; None as `dropped`.
        pacer: the layer that counts steps for this one, which makes as many calls; itself where none does.
    """

    counts: Tensor
    by_calls: Tensor
    dropped: Tensor | None
    largest: Tensor | None
    limit: int
    pacer: "ExpertLoad" = field(init=False, repr=False, compare=False)
    _cells: tuple[Tensor, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Made once: a view is an operation too.
        self._cells = self.by_calls.unbind()
        self.pacer = self

    @classmethod
    def start(cls, experts: int, capacity: Capacity, device: torch.device) -> "ExpertLoad":
        """All zero."""
        counts = torch.zeros(experts, dtype=torch.int64, device=device)
        most, _ = step_calls(capacity.rows, capacity.chunk)
        by_calls = torch.zeros(most + 1, dtype=torch.int64, device=device)
        dropped, largest = (
            torch.zeros((), dtype=torch.int64, device=device) if capacity.drops else None for _ in range(2)
        )
        return cls(counts, by_calls, dropped, largest, capacity.max_recv_token_num)

    @property
    def steps(self) -> Tensor:
        """int64 [], steps."""
        return self.pacer.by_calls.sum()

    @property
    def calls(self) -> Tensor:
        """int64 [], operator calls."""
        by_calls = self.pacer.by_calls
        return (by_calls * torch.arange(len(by_calls), device=by_calls.device)).sum()

    def add_step(self, calls: int) -> None:
        """Count one step of so many calls."""
        if self.pacer is self:
            self._cells[calls].add_(1)

    def add(self, expert_token_nums: Tensor) -> None:
        """Count one call's int32 [experts_per_rank]; nothing leaves the device."""
        self.counts += expert_token_nums
        if self.dropped is not None and self.largest is not None:
            received = expert_token_nums.sum()
            torch.maximum(self.largest, received, out=self.largest)
            self.dropped += (received - self.limit).clamp_(min=0)

    def clear(self) -> None:
        """Forget rows, which are of slots; steps and calls go on."""
        for counter in (self.counts, self.dropped, self.largest):
            if counter is not None:
                counter.zero_()
