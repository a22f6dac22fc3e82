"""How many rows each expert got, added up on the device; read elsewhere, between steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.plan.capacity import Capacity


@dataclass(slots=True)
class ExpertLoad:
    """Counters of one layer on one rank, since its start and warm-up included.

    Attributes:
        counts: int64 [experts_per_rank], rows routed to each local expert.
        dropped: int64 [], rows beyond `max_recv_token_num`, which the operator drops in silence (its counts go on
            reporting them); None where the plan allows no drop.
    """

    counts: Tensor
    dropped: Tensor | None
    limit: int

    @classmethod
    def start(cls, experts: int, capacity: Capacity, device: torch.device) -> "ExpertLoad":
        """All zero."""
        counts = torch.zeros(experts, dtype=torch.int64, device=device)
        dropped = torch.zeros((), dtype=torch.int64, device=device) if capacity.drops else None
        return cls(counts, dropped, capacity.max_recv_token_num)

    def add(self, expert_token_nums: Tensor) -> None:
        """Count one call's int32 [experts_per_rank]; nothing leaves the device."""
        self.counts += expert_token_nums
        if self.dropped is not None:
            self.dropped += (expert_token_nums.sum() - self.limit).clamp_(min=0)
