"""Two ranks that serve all tests of this folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from spawn import World


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks in one group."""
    world = World(2)
    yield world
    world.stop()
