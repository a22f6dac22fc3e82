"""Runs the demo as a program of its own, with the fake server in vLLM's place."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from vllm_megamoe.demo.baseline import Cache
from vllm_megamoe.testing.process import session_members

FAKE = Path(__file__).with_name("fake_vllm.py")

BOOTSTRAP = """
import sys
from pathlib import Path
from vllm_megamoe.demo import __main__
from vllm_megamoe.testing import server
fake = Path(sys.argv.pop(1))
server._executable = lambda: fake
__main__.app()
"""

SIGNAL_AT_START = """
import os, signal, subprocess
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print("started", self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGINT)
subprocess.Popen = Popen
"""
"""Put before the rest: a signal arrives when the system has made a process and Python has not yet told the caller."""


class DemoRun:
    """One run of the demo on a cache folder; its output is read when it has ended."""

    def __init__(self, folder: Path, *arguments: str, mode: str = "fine", shift: float = 0.0, early: str = "") -> None:
        script = folder / "vllm"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        script.chmod(0o755)
        self.cache = Cache(folder / "cache")
        self._output = (folder / "output").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", early + BOOTSTRAP, str(script), "--cache", str(self.cache.folder), *arguments],
            env={**os.environ, "FAKE_MODE": mode, "FAKE_SHIFT": str(shift)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 60) -> int:
        """Wait for the end and return the exit code."""
        return self._process.wait(timeout_s)

    def output(self) -> str:
        return Path(self._output.name).read_text()

    def sessions(self) -> list[int]:
        """The sessions of the programs that the demo has started and not yet ended."""
        return [pid for pid in children(self._process.pid) if session_members(pid)]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait for something to come true while the demo runs."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.05)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def log_says(log: Path, text: str) -> Callable[[], bool]:
    return lambda: log.exists() and text in log.read_text()
