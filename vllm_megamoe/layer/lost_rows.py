"""Which rows of a step lose an expert where `allow_token_drop` lets a rank make room for fewer rows than may come.

A receiver fills its experts one after the other, the rows of each by source rank and then in the source's order, and
leaves out what comes when it is full (op kernel arch22; #11258, B03). It tells nobody: its counts go on reporting all
rows. But each rank can work out the fate of its own rows once it knows how many rows every rank sends to every expert,
so the ranks exchange these counts before each call. That costs a small collective, in this mode alone; nothing of it is
read on the host within a step.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def lost_pairs(topk_ids: Tensor, sent: Tensor, counts: Tensor, rank: int, experts_per_rank: int, room: int) -> Tensor:
    """bool [T, K], the pairs of a call that find no room at their receiver.

    Args:
        topk_ids: int32 [T, K], global expert ids.
        sent: bool [T, K], pairs that take part; ids of the others mean nothing.
        counts: int64 [ranks, E], pairs that each rank sends to each expert.
        rank: this one.
        experts_per_rank: rank r holds experts r * experts_per_rank and on.
        room: rows that a receiver has room for in a call.
    """
    experts, bucket = counts.shape[1], _buckets(topk_ids, sent, counts.shape[1])
    totals = counts.sum(0).view(-1, experts_per_rank)
    earlier_experts = (totals.cumsum(1) - totals).flatten()
    first = earlier_experts + counts[:rank].sum(0)  # place of this rank's first row of each expert at its receiver
    by_expert, order = bucket.sort(stable=True)
    own = torch.cat([counts[rank], counts.new_zeros(1)])
    begin = own.cumsum(0) - own
    numbers = torch.arange(len(bucket), device=bucket.device)
    place = torch.empty_like(numbers)
    place[order] = numbers - begin[by_expert] + torch.cat([first, first.new_zeros(1)])[by_expert]
    return ((place >= room) & (bucket < experts)).view(topk_ids.shape)


def exchanged_counts(topk_ids: Tensor, sent: Tensor, experts: int, group: ProcessGroup | None) -> Tensor:
    """int64 [ranks, E], pairs that each rank of a group sends to each expert in a call; collective."""
    bucket = _buckets(topk_ids, sent, experts)
    own = torch.zeros(experts + 1, dtype=torch.int64, device=topk_ids.device)
    own.scatter_add_(0, bucket, torch.ones_like(bucket))
    own = own[:experts]
    if group is None:
        return own[None]
    found = torch.empty(group.size() * experts, dtype=torch.int64, device=own.device)
    dist.all_gather_into_tensor(found, own, group=group)
    return found.view(-1, experts)


def _buckets(topk_ids: Tensor, sent: Tensor, experts: int) -> Tensor:
    """int64 [T * K], the expert of each pair, and `experts` for those that take no part."""
    wide = torch.zeros(topk_ids.shape, dtype=torch.int64, device=topk_ids.device)
    return wide.add_(topk_ids).masked_fill_(~sent, experts).flatten()


class LostRows:
    """Pairs that the rows of the running step have lost in all layers so far, on the device.

    One for each process: the layers of a step add to it, and whoever knows whose the rows are takes it between steps.

    Attributes:
        pairs: int32 [rows], by the row's place in the step; empty until a layer that may drop rows is there.
    """

    def __init__(self) -> None:
        self.pairs = torch.zeros(0, dtype=torch.int32)

    def make_room(self, rows: int, device: torch.device) -> None:
        """For a layer whose step has so many rows; before any graph is captured."""
        if len(self.pairs) < rows or self.pairs.device != device:
            self.pairs = torch.zeros(rows, dtype=torch.int32, device=device)

    def add(self, first: int, lost: Tensor) -> None:
        """Add bool [T, K] of rows that begin at place `first` of the step."""
        self.pairs[first : first + len(lost)] += lost.sum(1, dtype=torch.int32)

    def start_step(self) -> None:
        """Forget what came before: warm-up, or a step that nobody asked about."""
        self.pairs.zero_()

    def taken(self) -> list[int]:
        """Pairs that each row of the step has lost; waits for the device."""
        found: list[int] = self.pairs.tolist()
        return found


LOST = LostRows()
"""Those of this process."""
