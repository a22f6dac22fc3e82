"""A program of our own and all that it starts: begun together, ended together, none left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from vllm_megamoe.demo.failure import DemoError
from vllm_megamoe.demo.interrupts import interrupts
from vllm_megamoe.demo.log_lines import first_error

_GRACE_S = 20.0  # for a server to end its workers
_SHORT_GRACE_S = 4.0  # the same when somebody waits for the prompt; a server that is still starting may need longer
_ORPHAN_S = 1.0  # for processes whose parent has ended
_KILL_S = 10.0  # for SIGKILL to take effect
_TAIL_LINES = 30


_running: list["OwnProcess"] = []


def stop_all() -> None:
    """End whatever a signal kept from being ended where it was started: the last thing that the demo does."""
    for process in list(_running):
        process.stop(_SHORT_GRACE_S)


class OwnProcess:
    """Runs a command in a session of its own, with its output in a file; use it as a context.

    The session is what finds its descendants again: they keep it when their parent dies.
    """

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with interrupts.held(), log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            _running.append(self)

    def __enter__(self) -> "OwnProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(_GRACE_S if kind is None else _SHORT_GRACE_S)

    def exit_code(self) -> int | None:
        """Return the program's exit code, None while it runs."""
        return self._process.poll()

    def members(self) -> list[int]:
        """Return the ids of all living processes of the session."""
        return session_members(self._process.pid)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """End the session: SIGTERM for the program, then SIGKILL for whoever is left; a second Ctrl-C skips the grace.

        Raises DemoError with the ids of processes that survive even that.
        """
        with interrupts.held():
            if self.exit_code() is None:
                self._process.terminate()
                _wait(lambda: self.exit_code() is not None, grace_s, impatient=True)
                _wait(lambda: not self.members(), _ORPHAN_S, impatient=True)
            # Python's resource tracker outlives the others by design, and then removes their shared memory.
            for member in self.members():
                if not _is_resource_tracker(member):
                    _kill(member)
            _wait(lambda: not self.members(), _ORPHAN_S, impatient=True)
            for member in self.members():
                _kill(member)
            _wait(lambda: self.exit_code() is not None and not self.members(), _KILL_S, impatient=False)
            left = self.members()
            if not left and self in _running:
                _running.remove(self)
        if left:
            raise DemoError(f"processes {left} cannot be ended; look at them with `ps -fp {','.join(map(str, left))}`")

    def failed(self, what: str) -> DemoError:
        """Return the error that says `what` and shows the end of the log and the first error in it."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        tail = "\n".join(f"    | {line}" for line in text.rstrip().splitlines()[-_TAIL_LINES:])
        cause = first_error(text)
        told = f"\n  first error in it: {cause}" if cause else ""
        return DemoError(f"{what} (exit code {self.exit_code()})\n{tail}\n  whole log: {self.log}{told}")


def session_members(session: int) -> list[int]:
    """Return the ids of the living processes of a session; zombies, which only wait for their parent, do not count."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            state, member_of = _state_and_session(entry)
            if member_of == session and state != "Z":
                members.append(int(entry.name))
    return members


def _state_and_session(entry: Path) -> tuple[str, int]:
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended while we looked
        return "", -1
    # "pid (name) state ppid pgrp session ...", where the name may hold spaces and parentheses
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[3])


def _wait(is_over: Callable[[], bool], limit_s: float, *, impatient: bool) -> None:
    """Wait until something is over or the limit has passed; a signal that comes ends an impatient wait."""
    end = time.monotonic() + limit_s
    while not is_over() and time.monotonic() < end and not (impatient and interrupts.pending):
        time.sleep(0.05)


def _is_resource_tracker(member: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{member}/cmdline").read_bytes()
    except OSError:  # it ended while we looked
        return False


def _kill(member: int) -> None:
    try:
        os.kill(member, signal.SIGKILL)
    except ProcessLookupError:  # it ended by itself in the meantime, which is what we want
        return
