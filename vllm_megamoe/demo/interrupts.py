"""Ctrl-C, SIGTERM and SIGHUP become one exception, which never strikes while a process is started or ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal asked the demo to end."""

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
