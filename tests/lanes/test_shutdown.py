"""SIGTERM while a server starts: vLLM's own handler runs, and a signal that got lost is sent again once it is ready."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

CODE = """
import os, signal, sys, time
from vllm_megamoe.lanes import shutdown

def _interrupt_init(*_):
    print("starting", flush=True)
    {what}

signal.signal(signal.SIGTERM, _interrupt_init)
shutdown.install()
shutdown.install()
print("up", flush=True)
try:
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


def test_the_signal_ends_the_start() -> None:
    assert run("raise KeyboardInterrupt") == ("starting\nended\n", 0)


def test_a_lost_signal_comes_again_when_the_server_is_ready() -> None:
    assert run("pass") == ("starting\nserving\n", 3)
