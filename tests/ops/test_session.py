"""How long a rank waits: a clock and messages of our own, so that nothing is waited for."""

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_megamoe.ops.arguments import CreateArguments
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin import link
from vllm_megamoe.ops.twin.buffers import TwinBuffer
from vllm_megamoe.ops.twin.session import Session


class Group:
    """Two ranks, of which this is the first."""

    group_name = "ep"

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


class Work:
    """A message on its way: arrives `delay` seconds after somebody waits for it."""

    def __init__(self, clock: "Clock") -> None:
        self.clock = clock

    def wait(self, limit: timedelta) -> None:
        self.clock.waits.append(limit.total_seconds())
        if self.clock.delay >= limit.total_seconds():
            raise RuntimeError("Timed out waiting")
        self.clock.now += self.clock.delay


class Clock:
    """What `time` and `torch.distributed` are to the link."""

    def __init__(self) -> None:
        self.now, self.delay = 1000.0, 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def isend(self, message: Tensor, **options: Any) -> Work:
        return Work(self)

    def irecv(self, memory: Tensor, **options: Any) -> Work:
        memory.zero_()
        return Work(self)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(link, "time", made)
    monkeypatch.setattr(link, "dist", made)
    return made


def session(config: Settings, calls: int) -> Session:
    """One on a buffer that has completed so many calls."""
    said = {"num_experts": 2, "num_max_tokens_per_rank": 4, "num_topk": 1, "hidden": 8, "intermediate_hidden": 0}
    group: Any = Group()
    buffer = SymmBuffer(group, CreateArguments(group=group, **said), config)
    buffer.held = TwinBuffer(1, calls_completed=calls)
    return Session(buffer, config)


@pytest.mark.parametrize(
    ("given", "calls", "seconds"),
    # docs/options.md: 300 s, in the first call of a buffer 1800; a time that somebody named holds in every call
    [(None, 0, 1800.0), (None, 1, 300.0), (5.0, 0, 5.0), (5.0, 1, 5.0), (4000.0, 0, 4000.0), (4000.0, 7, 4000.0)],
)
def test_the_time_to_wait(given: float | None, calls: int, seconds: float, clock: Clock) -> None:
    one = session(Settings(profile="none", backend="cpu", timeout_s=given), calls)
    one.exchange([torch.zeros(0, 8, dtype=torch.uint8)] * 2, [0, 1], 8)
    assert clock.waits == [seconds]


def test_the_environments_time_holds_for_a_first_call_too(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEGAMOE_TIMEOUT_S", "7")
    one = session(Settings(profile="none", backend="cpu"), 0)
    one.exchange([torch.zeros(0, 8, dtype=torch.uint8)] * 2, [0, 1], 8)
    assert clock.waits == [7.0]


def test_the_second_phase_has_its_own_time(clock: Clock) -> None:
    """A slow first phase, and slow experts between the two, leave the second one all of its time."""
    one = session(Settings(profile="none", backend="cpu", timeout_s=100.0), 1)
    rows = [torch.zeros(1, 8, dtype=torch.uint8)] * 2
    clock.delay = 60.0
    one.exchange(rows, [1, 1], 8)
    clock.now += 1000.0  # this rank's experts
    clock.delay = 20.0
    one.give_back(rows, [1, 1], 8)
    # out; home, then until the peer took this rank's two messages
    assert clock.waits == [100.0, 100.0, 80.0, 60.0]


def test_the_waits_of_a_phase_share_its_time(clock: Clock) -> None:
    one = session(Settings(profile="none", backend="cpu", timeout_s=100.0), 1)
    rows = [torch.zeros(1, 8, dtype=torch.uint8)] * 2
    clock.delay = 60.0
    with pytest.raises(RuntimeError, match=r"rank 1 is missing: .* within 100 s"):
        one.give_back(rows, [1, 1], 8)
    # the peer's rows, then until it took this rank's
    assert clock.waits == [100.0, 40.0]
