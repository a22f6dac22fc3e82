"""A signal at any point of the demo leaves no process behind."""

import signal
import time
from collections.abc import Callable

import pytest
from demo.runs import DemoRun, log_says

from vllm_megamoe.testing.process import session_members


def interrupt(run: DemoRun, number: int) -> None:
    """Send a signal and check that the demo ends by it and that no process of its sessions lives on."""
    sessions = run.sessions()
    assert sessions
    run.send(number)
    assert run.wait() == 128 + number, run.output()
    assert [session_members(session) for session in sessions] == [[] for _ in sessions]
    assert f"ended by {signal.Signals(number).name}; nothing was left running" in run.output()


def test_while_the_checkpoint_is_made(start: Callable[..., DemoRun]) -> None:
    run = start(checkpoint=False)
    run.wait_until(run.cache.log("checkpoint").exists)
    run.wait_until(lambda: bool(run.sessions()))
    interrupt(run, signal.SIGINT)
    assert not run.cache.checkpoint.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_it_waits_for_a_server(start: Callable[..., DemoRun], number: int) -> None:
    run = start(mode="never")
    run.wait_until(log_says(run.cache.log("baseline"), "stubborn child is up"))
    interrupt(run, number)


@pytest.mark.full
def test_while_it_waits_for_an_answer(start: Callable[..., DemoRun]) -> None:
    run = start(mode="hangs")
    run.wait_until(log_says(run.cache.log("server"), "chat hangs"))
    interrupt(run, signal.SIGINT)


@pytest.mark.full
def test_while_the_server_is_kept(start: Callable[..., DemoRun]) -> None:
    run = start("--keep")
    run.wait_until(lambda: "the server stays at" in run.output())
    interrupt(run, signal.SIGINT)


def test_twice(start: Callable[..., DemoRun]) -> None:
    """The second one comes while the first one is served."""
    run = start(mode="never")
    run.wait_until(log_says(run.cache.log("baseline"), "stubborn child is up"))
    sessions = run.sessions()
    run.send(signal.SIGINT)
    time.sleep(0.02)
    run.send(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT, run.output()
    assert [session_members(session) for session in sessions] == [[]]


def test_in_the_moment_in_which_a_program_starts(start: Callable[..., DemoRun]) -> None:
    """The program is there, and nobody holds it yet."""
    run = start(checkpoint=False, signal_at_start=True)
    assert run.wait() == 128 + signal.SIGINT, run.output()
    (session,) = [int(line.split()[1]) for line in run.output().splitlines() if line.startswith("started ")]
    assert session_members(session) == []


@pytest.mark.full
def test_without_one_the_stubborn_child_is_ended_too(start: Callable[..., DemoRun]) -> None:
    run = start()
    run.wait_until(log_says(run.cache.log("server"), "stubborn child is up"))
    sessions = run.sessions()
    assert run.wait() == 0, run.output()
    assert sessions
    assert [session_members(session) for session in sessions] == [[] for _ in sessions]
