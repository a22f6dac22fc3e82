"""Rows that find no room at their receiver, worked out by their senders, against a receiver that is filled by hand."""

import random
from typing import Any

import pytest
import torch

from vllm_megamoe.layer.lost_rows import LostRows, exchanged_counts, lost_pairs
from vllm_megamoe.testing.ranks import World

RANKS, PER_RANK, TOPK = 3, 4, 3
EXPERTS = RANKS * PER_RANK


def routed(seed: int) -> list[list[list[int]]]:
    """Ids by rank and token; -1 for a pair that takes no part. Most rows go to the first rank's experts."""
    rng = random.Random(seed)
    crowd = [*range(PER_RANK)] * 4 + [*range(EXPERTS)]

    def token() -> list[int]:
        ids: list[int] = []
        while len(ids) < TOPK:
            one = rng.choice(crowd)
            if one not in ids:
                ids.append(one)
        return ids if rng.random() < 0.8 else [-1] * TOPK

    return [[token() for _ in range(rng.randint(1, 12))] for _ in range(RANKS)]


def left_out(routing: list[list[list[int]]], room: int) -> set[tuple[int, int, int]]:
    """(rank, token, k) that no receiver has room for: experts in order, then source ranks, then tokens."""
    lost = set()
    for receiver in range(RANKS):
        filled = 0
        for expert in range(receiver * PER_RANK, (receiver + 1) * PER_RANK):
            for rank, tokens in enumerate(routing):
                for t, ids in enumerate(tokens):
                    if expert in ids:
                        if filled >= room:
                            lost.add((rank, t, ids.index(expert)))
                        filled += 1
    return lost


@pytest.mark.parametrize("room", [1, 7, 20, 1000])
@pytest.mark.parametrize("seed", range(8))
def test_as_a_receiver_fills_up(seed: int, room: int) -> None:
    routing = routed(seed)
    ids = [torch.tensor(tokens, dtype=torch.int32) for tokens in routing]
    counts = torch.cat([exchanged_counts(one, one >= 0, EXPERTS, None) for one in ids])
    found = set()
    for rank, one in enumerate(ids):
        lost = lost_pairs(one, one >= 0, counts, rank, PER_RANK, room)
        found |= {(rank, t, k) for t, k in lost.nonzero().tolist()}
    assert found == left_out(routing, room)
    assert bool(found) is (room < 20) or room == 20


def exchanged(rank: int) -> Any:
    from torch import distributed as dist

    ids = torch.tensor([[0, 3], [3, 2]] if rank == 0 else [[1, -1]], dtype=torch.int32)
    return exchanged_counts(ids, ids >= 0, 4, dist.group.WORLD).tolist()


def test_ranks_exchange_their_counts(two_ranks: World) -> None:
    assert two_ranks.run(exchanged, [(0,), (1,)]) == [[[1, 0, 1, 2], [0, 1, 0, 0]]] * 2


def test_a_step_adds_up_over_layers_and_the_next_one_begins_at_zero() -> None:
    lost = LostRows()
    lost.make_room(5, torch.device("cpu"))
    lost.start_step()
    lost.add(1, torch.tensor([[True, True], [False, True]]))
    lost.add(2, torch.tensor([[True, False]]))
    assert lost.taken() == [0, 2, 2, 0, 0]
    lost.start_step()
    assert lost.taken() == [0] * 5
