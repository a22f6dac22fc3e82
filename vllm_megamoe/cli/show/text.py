"""Numbers as people read them, and a console that takes text as it is."""

import os
import sys

from rich.console import Console

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def make_console(width: int = 100) -> Console:
    """A console on standard output. Brackets in texts are no markup.

    Args:
        width: of lines where there is neither a terminal nor COLUMNS.
    """
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=False, highlight=False, emoji=False, width=None if known else width)


def print_whole(line: str) -> None:
    """Print a line to copy: neither wrapped nor coloured, whatever the terminal's width."""
    sys.stdout.write(f"{line}\n")


def size(number: int) -> str:
    """`1.50 GiB`, `96.0 MiB`, `14.0 KiB`, `512 B`."""
    for unit, factor in _UNITS:
        if number >= factor:
            return f"{number / factor:.2f} {unit}" if unit == "GiB" else f"{number / factor:.1f} {unit}"
    return f"{number} B"


def sizes(numbers: tuple[int, ...]) -> str:
    """`2, 4, 8`, or `none`; a long run of them is shortened."""
    if not numbers:
        return "none"
    if len(numbers) > 12:
        return f"{', '.join(map(str, numbers[:8]))}, ... {numbers[-1]} ({len(numbers)} sizes)"
    return ", ".join(map(str, numbers))
