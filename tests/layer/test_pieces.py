"""A step's calls: as many on every rank, every row in one of them, none empty, none above the chunk."""

import pytest
from layer.layers import capacity

from vllm_megamoe.layer.rows import cut_step

STEPS = [(37, 37), (0, 37), (1, 37), (16, 37), (36, 37), (0, 1), (5, 5), (64, 64), (3, 64)]


@pytest.mark.parametrize(("own", "largest"), STEPS)
@pytest.mark.parametrize("pad", ["own", "dp_max", "num_max"])
def test_every_row_goes_into_one_call(own: int, largest: int, pad: str) -> None:
    pieces = cut_step(own, largest, capacity(pad=pad))
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(own))
    assert all(piece.stop - piece.start <= piece.rows <= 16 for piece in pieces)
    assert all(piece.rows >= 1 for piece in pieces)


def test_b17_a_rank_without_rows_calls_as_often_as_the_others() -> None:
    busy, idle = (cut_step(own, 37, capacity()) for own in (37, 0))
    assert len(busy) == len(idle) == 3
    assert [piece.rows for piece in idle] == [1, 1, 1]


def test_b09_ten_thousand_rows_above_a_limit_of_4096() -> None:
    pieces = cut_step(10240, 10240, capacity(rows=10240, chunk=4096))
    assert [piece.stop - piece.start for piece in pieces] == [3413, 3413, 3414]


def test_b15_ranks_with_other_row_counts_pad_to_the_same_ones() -> None:
    """A2/A3 give wrong output when ranks call with different numbers of rows."""
    counts = {tuple(piece.rows for piece in cut_step(own, 9, capacity(pad="dp_max"))) for own in (5, 9, 0)}
    assert counts == {(9,)}


def test_950_of_9_1_always_gets_the_buffers_number_of_rows() -> None:
    assert [piece.rows for piece in cut_step(3, 20, capacity(pad="num_max"))] == [16, 16]
