"""Replicated rows are cut into shares that cover every row once, and come back in order."""

import pytest
import torch
from torch import Tensor

from vllm_megamoe.layer.rows import Seat, gather_shares, share_of


def seat(rank: int, size: int, parts: list[Tensor] | None = None) -> Seat:
    """A seat whose gather returns the given parts of all ranks, as an all-gather would."""
    return Seat(group=None, rank=rank, size=size, all_gather=lambda mine: torch.cat(parts or [mine]))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 8, 65])
def test_every_row_goes_to_one_rank(rows: int, size: int) -> None:
    cuts = [share_of(rows, seat(rank, size)) for rank in range(size)]
    assert [row for start, stop, _ in cuts for row in range(start, stop)] == list(range(rows))
    assert len({share for _, _, share in cuts}) == 1


@pytest.mark.parametrize(("rows", "size"), [(1, 2), (5, 2), (7, 4), (6, 3)])
def test_shares_come_back_in_order(rows: int, size: int) -> None:
    x = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
    padded = []
    for rank in range(size):
        start, stop, share = share_of(rows, seat(rank, size))
        mine = x[start:stop]
        padded.append(torch.cat([mine, torch.full((share - len(mine), 3), -1.0)]))
    start, stop, share = share_of(rows, seat(0, size))
    assert gather_shares(x[start:stop], rows, share, seat(0, size, padded)).equal(x)
