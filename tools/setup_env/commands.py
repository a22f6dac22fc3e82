"""Runs a command into the log, and shows the log's end when it fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.setup_env.say import SetupError

_TAIL_LINES = 25


def run_logged(command: list[str], log: Path, what: str, advice: str) -> None:
    """Run `command` with its output appended to `log`; SetupError with the end of the output when it fails."""
    output = run_quietly(command, log)
    if output is not None:
        raise failure(command, output, log, what, advice)


def run_quietly(command: list[str], log: Path) -> str | None:
    """Run `command` with its output appended to `log`; return None when it succeeds, else its output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+", encoding="utf-8", errors="replace") as file:
        file.write(f"\n$ {' '.join(command)}\n")
        file.flush()
        begin = file.tell()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
        if code == 0:
            return None
        file.seek(begin)
        return file.read() or f"(no output, exit code {code})"


def failure(command: list[str], output: str, log: Path, what: str, advice: str) -> SetupError:
    """Return the error that tells of a failed command: what failed, the end of its output, and what to do."""
    tail = "\n".join(f"    | {line}" for line in output.rstrip().splitlines()[-_TAIL_LINES:])
    return SetupError(f"{what}\n{tail}\n  command: {' '.join(command)}\n  whole log: {log}\n  {advice}")
