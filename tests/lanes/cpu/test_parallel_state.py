"""A layer's seat in vLLM's expert-parallel group, and how many rows the busiest rank brings to a step."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lanes.cpu import draft_group

from vllm_megamoe.errors import ConfigError, PeerError
from vllm_megamoe.lanes.cpu import parallel_state as state
from vllm_megamoe.testing.ranks import World


def layer(ep_rank: int, ep_size: int, *, dp_size: int = 1, sp_size: int = 1, placement: str = "linear") -> Any:
    """As much of a RoutedExperts as says where its experts are."""
    parallel = SimpleNamespace(ep_rank=ep_rank, ep_size=ep_size, dp_size=dp_size, sp_size=sp_size)
    return SimpleNamespace(
        layer_name="model.layers.0.mlp.experts",
        moe_config=SimpleNamespace(moe_parallel_config=parallel),
        expert_map_manager=SimpleNamespace(placement_strategy=placement),
    )


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's expert-parallel group: rank 1 of 4."""
    found = SimpleNamespace(rank_in_group=1, world_size=4, device_group=object())
    monkeypatch.setattr(state, "get_ep_group", lambda: found)
    return found


def test_a_seat_is_the_groups(group: Any) -> None:
    seat = state.read_seat(layer(1, 4))
    assert (seat.group, seat.rank, seat.size) == (group.device_group, 1, 4)
    assert seat.largest_rows(7) == 7


@pytest.mark.parametrize(("rank", "size"), [(2, 4), (1, 2), (1, 8)], ids=["rank", "half the group", "twice the group"])
def test_a_layer_that_says_another_rank_or_size_is_rejected(rank: int, size: int, group: Any) -> None:
    """One of the two is enough: the operator would hold other experts than the router means."""
    with pytest.raises(ConfigError, match=rf"rank {rank} of {size}, the communicator 1 of 4"):
        state.read_seat(layer(rank, size))


def test_experts_out_of_rank_order_are_rejected(group: Any) -> None:
    with pytest.raises(ConfigError, match=r"placement 'round_robin'; expected 'linear'"):
        state.read_seat(layer(1, 4, placement="round_robin"))


def test_a_single_rank_needs_no_group() -> None:
    seat = state.read_seat(layer(0, 1, placement="round_robin"))
    assert (seat.group, seat.rank, seat.size) == (None, 0, 1)


def test_data_parallel_ranks_ask_vllm_for_the_largest_number(group: Any, exchanged: Any) -> None:
    exchanged([5, 9, 0, 2])
    assert state.read_seat(layer(1, 4, dp_size=4, sp_size=2)).largest_rows(1) == 5


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what stands in the forward context."""

    def exchange(rows: list[int] | None) -> None:
        found = (
            None if rows is None else SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(rows, dtype=torch.int32))
        )
        monkeypatch.setattr(state, "get_forward_context", lambda: SimpleNamespace(dp_metadata=found))

    return exchange


@pytest.mark.parametrize(("rows", "sp_size", "most"), [([5, 9, 0], 1, 9), ([5, 9, 0], 2, 5), ([8, 1], 4, 2)])
def test_the_largest_number_counts_whatever_this_rank_brings(
    rows: list[int], sp_size: int, most: int, exchanged: Any
) -> None:
    """B11, B16: not this rank's, not the sum; a sequence-parallel model gives each of its ranks the ceiling."""
    exchanged(rows)
    assert {state.largest_rows(sp_size, own) for own in rows} == {most}


def test_b15_without_an_exchange_nobody_guesses(exchanged: Any) -> None:
    exchanged(None)
    with pytest.raises(PeerError, match=r"brings 7 rows and vLLM has not exchanged"):
        state.largest_rows(1, 7)


def test_draft_layers_have_a_communicator_of_their_own() -> None:
    """Two ranks with real groups: on 950 the second configuration has no place on the main model's communicator."""
    world = World(2)
    try:
        for found in world.run(draft_group.seats, [(0,), (1,)], 240):
            assert found["communicators"] == ("main", "draft")
            assert found["one"]
            assert found["sum"] == 3.0
            assert found["experts"] == [8, 4]
            assert "one buffer per communicator" in found["refused"]
    finally:
        world.stop()
