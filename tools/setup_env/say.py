"""What set-up tells its user: plain lines, and one kind of failure."""

from __future__ import annotations

import sys
import time


class SetupError(Exception):
    """Set-up cannot go on. The message says what happened, what was expected and what to do."""


def say(text: str) -> None:
    """Print one line at once, also when the output is a file."""
    print(f"setup: {text}", flush=True)


def complain(text: str) -> None:
    """Print a failure to the error output."""
    print(f"setup: FAILED: {text}", file=sys.stderr, flush=True)


class Timer:
    """Seconds since it was made, as text."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __str__(self) -> str:
        return f"{time.monotonic() - self._start:.0f} s"
