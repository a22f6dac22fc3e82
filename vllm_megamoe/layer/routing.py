"""From a router's expert ids to the operator's: repeats made distinct, logical experts mapped to physical slots.

Everything is a few operations on the device, with no number read by the host, so it is captured in a graph as it is.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_megamoe.errors import OperatorError

_MOST_TURNS = 840
"""Columns of the table of copies at most: the least common multiple of 1 to 8. Beyond it a copy may get one turn more
than another."""


class Routes:
    """Which physical slot a token takes for a logical expert.

    An expert that stands in several slots is taken from them in turn: row r of rank q takes copy (r + q) mod copies. So
    the choice depends on a token's place in the step alone, is the same in every run, and spreads few rows of many
    ranks too; the result does not depend on it, because copies are equal bytes.

    Args:
        slots: the logical expert of each physical slot, in rank order.
        num_experts: logical experts.
        rows: most rows of a step that a rank brings.
        rank: this one.
        device: of the ids.
    """

    def __init__(self, slots: Sequence[int], num_experts: int, rows: int, rank: int, device: torch.device) -> None:
        self._experts = num_experts
        homes: list[list[int]] = [[] for _ in range(num_experts)]
        for slot, expert in enumerate(slots):
            homes[expert].append(slot)
        self._width = min(math.lcm(*map(len, homes)), _MOST_TURNS)
        # Before expert 0 a row for id -1, which names no expert.
        table = [[-1] * self._width, *([own[turn % len(own)] for turn in range(self._width)] for own in homes)]
        self._table = torch.tensor(table, dtype=torch.int32, device=device).flatten()
        turns = (torch.arange(rows, dtype=torch.int32) + rank) % self._width + self._width
        self._turns = turns.unsqueeze(1).to(device)

    @property
    def size(self) -> tuple[int, int]:
        """Experts, and turns of their copies; routes of one size can take each other's place."""
        return self._experts, self._width

    def take(self, other: "Routes") -> None:
        """The routes of another placement of the same size, in the same memory: a captured graph holds its address."""
        self._table.copy_(other._table)

    def __call__(self, topk_ids: Tensor) -> Tensor:
        """Logical ids int32 [T, K], -1 for none -> physical ids int32 [T, K].

        Raises:
            OperatorError: an id is none of the model's; on a device the index itself fails.
        """
        if (
            topk_ids.device.type == "cpu"
            and topk_ids.numel()
            and not -1 <= topk_ids.min() <= topk_ids.max() < self._experts
        ):
            raise OperatorError(
                f"topk_ids from {int(topk_ids.min())} to {int(topk_ids.max())}; expected experts from 0 to "
                f"{self._experts - 1}, or -1 for none. Pass what the router chose."
            )
        places = torch.add(self._turns[: topk_ids.shape[0]], topk_ids, alpha=self._width)
        return self._table[places]


def distinct(topk_ids: Tensor, topk_weights: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Make the experts of each row distinct, as the operator demands: a repeat adds its weight to the first.

    The place of a repeat gets weight 0 and an expert that the row has not: the first free ones, in order. A repeat of
    weight 0 (zero experts, LongCat) changes no number at all; one of another weight is summed with the first in float32
    instead of after the experts.

    Args:
        topk_ids: int32 [T, K] of num_experts, -1 for none.
        topk_weights: float32 [T, K].
    """
    topk = topk_ids.shape[1]
    same = topk_ids.unsqueeze(2) == topk_ids.unsqueeze(1)  # [T, this, other]
    before = torch.ones(topk, topk, dtype=torch.bool, device=topk_ids.device).tril(-1)
    repeats = (same & before).any(dim=2) & (topk_ids >= 0)
    summed = torch.where(same, topk_weights.unsqueeze(1), 0.0).sum(dim=2)
    # Among the first 2 K experts a row leaves at least K, or all others that there are.
    some = torch.arange(min(num_experts, 2 * topk), dtype=topk_ids.dtype, device=topk_ids.device)
    taken = (topk_ids.unsqueeze(2) == some).any(dim=1)  # [T, experts looked at]
    free = (taken * len(some) + some).argsort(dim=1)
    turn = (repeats.cumsum(dim=1) - 1).clamp_(min=0)
    filler = free.gather(1, turn).to(topk_ids.dtype)
    keeps = topk_ids < 0
    weights = torch.where(repeats, 0.0, torch.where(keeps, topk_weights, summed))
    return torch.where(repeats, filler, topk_ids), weights
