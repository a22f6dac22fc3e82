"""Ranks for the harness's own tests."""

from collections.abc import Iterator

import pytest

from vllm_megamoe.testing.ranks import World


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks that serve all tests of this folder."""
    world = World(2)
    yield world
    world.stop()


@pytest.fixture
def two_lost_ranks() -> Iterator[World]:
    """Two ranks for one test that breaks their communicator."""
    world = World(2)
    yield world
    world.stop()
