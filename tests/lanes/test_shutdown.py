"""A server that is told to stop: what requests in flight are told, and a signal that got lost while it started."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

CODE = """
import os, signal, sys, time
from vllm_megamoe.lanes import shutdown

def _interrupt_init(*_):
    print("starting", flush=True)
    {what}

signal.signal(signal.SIGTERM, _interrupt_init)
shutdown.install()
shutdown.install()
try:
    print("up", flush=True)
    time.sleep(1)
except KeyboardInterrupt:
    print("ended", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: (print("serving", flush=True), os._exit(3)))
time.sleep(30)
"""


def run(what: str) -> tuple[str, int]:
    """What is said, and the exit code, of a process that gets SIGTERM while it starts."""
    process = subprocess.Popen([sys.executable, "-c", CODE.format(what=what)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    return said, process.returncode


@pytest.mark.full
def test_the_signal_ends_the_start() -> None:
    assert run("raise KeyboardInterrupt") == ("starting\nended\n", 0)


@pytest.mark.full
def test_a_lost_signal_comes_again_when_the_server_is_ready() -> None:
    assert run("pass") == ("starting\nserving\n", 3)


def test_requests_in_flight_are_told_by_an_error_that_vllm_hands_on() -> None:
    """Only EngineDeadError reaches a client as it is (v1/engine/async_llm.py, generate)."""
    from vllm.v1.engine.exceptions import EngineDeadError

    from vllm_megamoe.lanes.quant_config import MegaMoeConfig
    from vllm_megamoe.lanes.shutdown import _answering

    told: list[Exception] = []
    loop = SimpleNamespace(is_closed=lambda: False, call_soon_threadsafe=lambda call, error: call(error))

    def front_end(quant_config: object) -> SimpleNamespace:
        return SimpleNamespace(
            output_handler=SimpleNamespace(get_loop=lambda: loop),
            vllm_config=SimpleNamespace(quant_config=quant_config),
            output_processor=SimpleNamespace(propagate_error=told.append),
        )

    calls: list[float] = []
    stop = _answering(lambda self, timeout: calls.append(timeout))
    stop(front_end(None), timeout=1.0)
    assert told == []
    stop(front_end(MegaMoeConfig()), timeout=2.0)
    assert calls == [1.0, 2.0]
    (error,) = told
    assert isinstance(error, EngineDeadError)
    assert str(error) == "The server was told to stop before this request was finished. Send it again."
