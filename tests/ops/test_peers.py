"""Ranks that do not agree: an error with rank and reason on every rank that waits, never a hang."""

from collections.abc import Callable
from typing import Any

import pytest
from ops import peer_calls

from vllm_megamoe.testing.ranks import Failure, World

# far above the operator's own limit: a hang is told from an error by this
LIMIT_S = 90.0


def failures(world: World, function: Callable[..., Any], *arguments: Any) -> list[Failure]:
    """The outcome of each rank, all of which must have raised."""
    outcomes = world.outcomes(function, [arguments, arguments], LIMIT_S)
    assert all(isinstance(outcome, Failure) for outcome in outcomes), outcomes
    return outcomes


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_max_tokens_per_rank", 17), ("max_recv_token_num", 64), ("topk_weights_type", 1)],
)
def test_an_attribute_differs(name: str, value: int, two_lost_ranks: World) -> None:
    for failure in failures(two_lost_ranks, peer_calls.another_mode, name, value):
        assert failure.kind == "PeerError"
        assert name in failure.message
        assert str(value) in failure.message
        assert "rank" in failure.message


def test_buffers_are_made_differently(two_lost_ranks: World) -> None:
    for failure in failures(two_lost_ranks, peer_calls.another_capacity, 23):
        assert failure.kind == "PeerError"
        assert "num_max_tokens_per_rank" in failure.message
        assert "23" in failure.message


def test_calls_come_in_another_order(two_lost_ranks: World) -> None:
    for failure in failures(two_lost_ranks, peer_calls.another_order):
        assert failure.kind == "PeerError"
        assert f"rank {1 - failure.rank}" in failure.message


def test_a_rank_does_not_call(two_lost_ranks: World) -> None:
    waiting, absent = two_lost_ranks.outcomes(peer_calls.no_call, [(8.0,), (8.0,)], LIMIT_S)
    assert absent == "rank 1 never called"
    assert isinstance(waiting, Failure)
    assert waiting.kind == "PeerError"
    assert "rank 1" in waiting.message
    assert "3" in waiting.message  # the limit, in seconds


def test_a_call_is_rejected_on_one_rank(two_lost_ranks: World) -> None:
    other, rejected = failures(two_lost_ranks, peer_calls.rejected_call)
    assert rejected.kind == "OperatorError"
    assert "topk_ids" in rejected.message
    assert other.kind == "PeerError"
    assert "rank 1" in other.message


def test_a_call_rejected_on_all_ranks_breaks_nothing(two_lost_ranks: World) -> None:
    for before, after in two_lost_ranks.run(peer_calls.rejected_then_fine, [(), ()], LIMIT_S):
        assert before == after
