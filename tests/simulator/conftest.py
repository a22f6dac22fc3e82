"""Two ranks that serve all the simulator's tests."""

from collections.abc import Iterator

import pytest

from vllm_megamoe.testing.ranks import World


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks in one group."""
    world = World(2)
    yield world
    world.stop()
