"""Worlds of ranks: order, failures, silence and a new start."""

import os
import time

import pytest
import torch
from torch import distributed as dist

from vllm_megamoe.testing.ranks import Failure, RankError, World


def total(value: int) -> tuple[int, int]:
    """This rank's number and the sum over all ranks."""
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    return dist.get_rank(), int(tensor)


def fail_on(rank: int) -> str:
    """Raise on one rank."""
    if dist.get_rank() == rank:
        raise ValueError(f"planted on rank {rank}")
    return "fine"


def sleep_on(rank: int, seconds: float) -> str:
    """Stay silent on one rank."""
    if dist.get_rank() == rank:
        time.sleep(seconds)
    return "fine"


def die_on(rank: int) -> str:
    """Leave without a word on one rank."""
    if dist.get_rank() == rank:
        os._exit(3)
    return "fine"


def test_ranks_answer_in_order(two_ranks: World) -> None:
    assert two_ranks.run(total, [(3,), (4,)]) == [(0, 7), (1, 7)]


def test_a_failure_names_its_rank(two_ranks: World) -> None:
    first, second = two_ranks.outcomes(fail_on, [(1,), (1,)])
    assert first == "fine"
    assert isinstance(second, Failure)
    assert (second.rank, second.kind, second.message) == (1, "ValueError", "planted on rank 1")
    with pytest.raises(RankError, match="planted on rank 1"):
        two_ranks.run(fail_on, [(1,), (1,)])


def test_silence_and_death_end_the_world_and_the_next_case_starts_anew(two_lost_ranks: World) -> None:
    with pytest.raises(RankError, match=r"ranks \[1\] of 2 gave no answer"):
        two_lost_ranks.run(sleep_on, [(1, 30.0), (1, 30.0)], limit_s=3)
    with pytest.raises(RankError, match="rank 0 of 2 died"):
        two_lost_ranks.run(die_on, [(0,), (0,)])
    assert two_lost_ranks.run(total, [(1,), (2,)]) == [(0, 3), (1, 3)]


def unsendable() -> object:
    """Return what cannot be pickled."""
    return lambda: None


def test_an_answer_that_cannot_be_sent_is_a_failure(two_ranks: World) -> None:
    first, second = two_ranks.outcomes(unsendable, [(), ()])
    assert isinstance(first, Failure)
    assert isinstance(second, Failure)
    assert "pickle" in first.message


def test_a_case_needs_arguments_for_every_rank(two_ranks: World) -> None:
    with pytest.raises(ValueError, match="1 tuples of arguments for 2 ranks"):
        two_ranks.run(total, [(1,)])
