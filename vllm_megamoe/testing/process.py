"""A program that runs in a session of its own, with its output in a log, and that ends together with all it started.

The session is what finds its descendants again: they keep it when their parent dies, also in another process group.

Signals: after `interrupts.install()`, Ctrl-C, SIGTERM and SIGHUP become one exception, `Interrupted`, which never
strikes while a program is started or ended. So no moment exists in which a program runs and nobody would end it.
Without `install()` nothing of the caller's signal handling changes.

Failures: `HarnessError` says what did not do what it should; `failed` adds the log's end and the first error in it,
because a worker's exception ends the engine, which ends the server, and each writes a traceback of its own.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from vllm_megamoe.errors import MegaMoeError

_GRACE_S = 20.0  # for a server to end its workers
_SHORT_GRACE_S = 4.0  # the same when somebody waits for the prompt; a server that is still starting may need longer
_ORPHAN_S = 1.0  # for processes whose parent has ended
_KILL_S = 10.0  # for SIGKILL to take effect
_TAIL_LINES = 30

# At the line's beginning or right after a prefix, `(Worker pid=7) ERROR 01-31 12:00:00 [worker.py:9] ValueError: ...`
_ERROR = re.compile(r"(?:^|[\])] )(?:\w+\.)*(\w*(?:Error|Exception): \S.*)$", re.MULTILINE)


class HarnessError(MegaMoeError, RuntimeError):
    """Something that was started did not do what it should. The message says what happened and what to do."""


class Interrupted(KeyboardInterrupt):
    """A signal asked us to end; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Interrupts:
    def __init__(self) -> None:
        self.pending: int | None = None
        self._holders = 0

    def install(self) -> None:
        """Take the signals over; only in the main thread, once."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._holders:
            self.pending = number
        else:
            raise Interrupted(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a signal back until the block ends; inside, `pending` tells that one has come."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self.pending is not None and not self._holders:
            number, self.pending = self.pending, None
            raise Interrupted(number)


interrupts = _Interrupts()

_running: list["OwnProcess"] = []


def stop_all() -> None:
    """End whatever a signal kept from being ended where it was started: the last thing that a program does."""
    for process in list(_running):
        process.stop(_SHORT_GRACE_S)


class OwnProcess:
    """Runs a command in a session of its own, its output in a file; use it as a context, or call `stop`.

    Args:
        command: the program and its arguments.
        log: where its standard output and error go; an older file is replaced.
        environment: all of it; nothing of the caller's is added.
        pass_fds: file descriptors that the program inherits under the same numbers.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], *, pass_fds: Sequence[int] = ()
    ) -> None:
        self.log = log
        with interrupts.held(), log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=pass_fds,
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

    def wait(self, limit_s: float) -> int:
        """Return the exit code once the program has ended by itself.

        Raises:
            HarnessError: it has not ended after `limit_s` seconds; it still runs then.
        """
        _wait(lambda: self.exit_code() is not None, limit_s, impatient=False)
        code = self.exit_code()
        if code is None:
            raise self.failed(f"not done after {limit_s:g} s")
        return code

    def send(self, number: int) -> None:
        """Send a signal to the program alone, as `kill` and a service manager do; nothing where it has ended."""
        self._process.send_signal(number)

    def members(self) -> list[int]:
        """Return the ids of all living processes of the session."""
        return session_members(self._process.pid)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """End the session: SIGTERM for the program, then SIGKILL for whoever is left; a second Ctrl-C skips the grace.

        Args:
            grace_s: seconds that the program has after SIGTERM; 0 kills at once.

        Raises:
            HarnessError: with the ids of processes that survive even that.
        """
        with interrupts.held():
            blocks = {block for member in self.members() for block in shared_memory(member)}
            if self.exit_code() is None and grace_s > 0:
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
            if not left:
                for block in blocks:
                    block.unlink(missing_ok=True)
                if self in _running:
                    _running.remove(self)
        if left:
            raise HarnessError(
                f"processes {left} cannot be ended; look at them with `ps -fp {','.join(map(str, left))}`"
            )

    def failed(self, what: str) -> HarnessError:
        """Return the error that says `what`, with the exit code, the log's end and the first error in it."""
        code = self.exit_code()
        state = "still running" if code is None else f"exit code {code}"
        return HarnessError(f"{what} ({state})\n{end_of(self.log)}")


def end_of(log: Path) -> str:
    """Return a log's last lines, where the whole of it is, and the first error in it: lines for an error's text."""
    text = log.read_text(encoding="utf-8", errors="replace")
    tail = "\n".join(f"    | {line}" for line in text.rstrip().splitlines()[-_TAIL_LINES:])
    cause = first_error(text)
    return f"{tail}\n  whole log: {log}" + (f"\n  first error in it: {cause}" if cause else "")


def first_error(text: str) -> str:
    """Return the first exception that a log tells of, "" when there is none: what follows is mostly its echo."""
    found = _ERROR.search(text)
    return found[1] if found else ""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shared_memory(member: int) -> set[Path]:
    """Return the named blocks of shared memory that a process has mapped; vLLM's CPU workers leave theirs behind."""
    try:
        maps = Path(f"/proc/{member}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended while we looked
        return set()
    return {Path(line[line.index("/dev/shm/") :]) for line in maps.splitlines() if "/dev/shm/" in line}


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
