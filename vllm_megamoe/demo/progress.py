"""A line that shows how long something takes, and what it last said."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

_PLAIN_INTERVAL_S = 15.0


@contextmanager
def waiting(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Give a function that shows the seconds so far and a detail: one line redrawn on a terminal, else one at times."""
    start = time.monotonic()
    last_plain = start

    def show(detail: str) -> None:
        nonlocal last_plain
        seconds = time.monotonic() - start
        if console.is_terminal:
            status.update(f"{what} [bold]{seconds:.0f} s[/]  [dim]{escape(detail)}[/]")
        elif time.monotonic() - last_plain >= _PLAIN_INTERVAL_S:
            last_plain = time.monotonic()
            console.print(f"    {seconds:.0f} s  {escape(detail)}", highlight=False)

    with console.status(what) as status:
        yield show
    console.print(f"    done in {time.monotonic() - start:.0f} s", highlight=False)
