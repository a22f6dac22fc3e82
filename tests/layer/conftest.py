"""Two ranks for the method's tests: one spawn per session, shared by all cases."""

from collections.abc import Iterator

import pytest
import torch

from vllm_megamoe.testing.ranks import World


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The matrices are tiny, and ranks share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks that serve the whole session."""
    world = World(2)
    yield world
    world.stop()
