"""Which row of which rank goes to which expert, and which rows a full receive buffer loses."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from oracle.case import Case, Rank


@dataclass(frozen=True, slots=True)
class Slot:
    """Token and k of a source rank."""

    rank: int
    token: int
    k: int


def sent_ids(rank: Rank, num_experts: int) -> NDArray[np.int32]:
    """topk_ids after the mask: a masked token's ids become num_experts (op kernel arch22)."""
    if rank.mask is None:
        return rank.topk_ids
    return np.where(rank.mask[:, None] != 0, rank.topk_ids, np.int32(num_experts))


def slots_by_expert(case: Case) -> list[list[Slot]]:
    """For each expert its rows, ordered by source rank, then token."""
    found: list[list[Slot]] = [[] for _ in range(case.num_experts)]
    for r, rank in enumerate(case.ranks):
        for (token, k), expert in np.ndenumerate(sent_ids(rank, case.num_experts)):
            if 0 <= expert < case.num_experts:
                found[expert].append(Slot(r, token, k))
    return found


def kept(case: Case, slots: list[list[Slot]]) -> list[list[Slot]]:
    """Without the rows beyond max_recv_token_num, counted over a rank's experts in order (op kernel arch22)."""
    if not case.max_recv_token_num:
        return slots
    result = []
    for first in range(0, case.num_experts, case.experts_per_rank):
        room = case.max_recv_token_num
        for rows in slots[first : first + case.experts_per_rank]:
            result.append(rows[:room])
            room -= len(result[-1])
    return result
