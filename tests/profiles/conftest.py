"""What tests of this folder share: two ranks, and a stand-in for the operator's package."""

from collections.abc import Iterator

import pytest
from profiles.package import Package

from vllm_megamoe.ops.arguments import CALL, CREATE
from vllm_megamoe.ops.cann import adapter
from vllm_megamoe.ops.cann.installed import Installed
from vllm_megamoe.testing.ranks import World


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks in one group."""
    world = World(2)
    yield world
    world.stop()


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    """Behind the adapter, with every argument of both functions."""
    made = Package()
    names = [frozenset(argument.name for argument in table) for table in (CREATE, CALL)]
    monkeypatch.setattr(adapter, "installed", lambda: Installed(made.create, made.run, *names))
    monkeypatch.setattr(adapter, "make_communicator", lambda group: None)
    return made
