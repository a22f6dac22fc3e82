"""Three ranks, one of which fails: every other one says so, and the next call is right again."""

from collections.abc import Iterator

import pytest
from ops import smoke_peers

from vllm_megamoe.testing.ranks import World

RANKS = [(), (), ()]


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[World]:
    world = World(3)
    yield world
    world.stop()


def test_a_rejected_call_reaches_the_others_with_its_reason(three_ranks: World) -> None:
    for rank, (outcomes, went_on) in enumerate(three_ranks.run(smoke_peers.rejected_several_times, RANKS)):
        assert len(outcomes) == 3
        for kind, text in outcomes:
            assert kind == ("OperatorError" if rank == smoke_peers.BAD else "PeerError")
            assert "topk_ids[0]" in text
            assert rank == smoke_peers.BAD or f"rank {smoke_peers.BAD} rejected its call" in text
        assert went_on


def test_a_failure_in_the_middle_reaches_the_others(three_ranks: World) -> None:
    for rank, (outcome, went_on) in enumerate(three_ranks.run(smoke_peers.broken_in_the_middle, RANKS)):
        assert outcome is not None
        kind, text = outcome
        assert kind == ("RuntimeError" if rank == smoke_peers.BAD else "PeerError")
        assert ("out of memory" if rank == smoke_peers.BAD else f"rank {smoke_peers.BAD} failed") in text
        assert went_on


def test_a_rank_may_have_no_tokens(three_ranks: World) -> None:
    for unchanged, counts, routed in three_ranks.run(smoke_peers.an_idle_rank, RANKS):
        assert unchanged
        assert counts == routed
