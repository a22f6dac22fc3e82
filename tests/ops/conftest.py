"""Worlds of ranks for the operator's tests: one spawn per size and session, shared by all cases."""

from collections.abc import Iterator

import pytest
import torch

from vllm_megamoe.testing.ranks import World


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The matrices are tiny, and ranks share the cores."""
    torch.set_num_threads(1)


def _world(size: int, *, joined: bool = True) -> Iterator[World]:
    world = World(size, joined=joined)
    yield world
    world.stop()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks that serve the whole session."""
    yield from _world(2)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[World]:
    """Four ranks that serve the whole session."""
    yield from _world(4)


@pytest.fixture
def two_lost_ranks() -> Iterator[World]:
    """Two ranks for one test that breaks their communicator."""
    yield from _world(2)


@pytest.fixture(scope="module")
def two_strangers() -> Iterator[World]:
    """Two ranks without a process group: their cases make one and end it."""
    yield from _world(2, joined=False)
