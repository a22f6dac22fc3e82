"""What the demo shows: how long it waits and for what, the experts' load from the server's log, the comparison."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vllm_megamoe.demo.comparison import Difference
from vllm_megamoe.testing.process import HarnessError

_PLAIN_INTERVAL_S = 15.0


@contextmanager
def waiting(console: Console, what: str, estimate_s: float) -> Iterator[Callable[[str], None]]:
    """Say what is waited for and how long it may take; give a function that shows the seconds so far and a detail.

    On a terminal one line is redrawn; elsewhere a line is written when the detail changes, or every 15 s.
    """
    console.print(f"    {what}, some {estimate_s:.0f} s", highlight=False)
    start, told_at, told = time.monotonic(), time.monotonic(), ""

    def show(detail: str) -> None:
        nonlocal told_at, told
        seconds = time.monotonic() - start
        status.update(f"    [bold]{seconds:.0f} s[/]  [dim]{detail}[/]")
        if not console.is_terminal and (detail != told or time.monotonic() - told_at >= _PLAIN_INTERVAL_S):
            told_at, told = time.monotonic(), detail
            console.print(f"    {seconds:.0f} s  {detail}", highlight=False)

    with console.status(f"    {what}") as status:
        yield show
    console.print(f"    done in {time.monotonic() - start:.0f} s", highlight=False)


_LINE = re.compile(
    r"megamoe expert load: layer=(?P<layer>\S+) rank=(?P<rank>\d+) first_expert=(?P<first>\d+) "
    r"calls=(?P<calls>\d+) tokens=\[(?P<tokens>[\d, ]*)\]"
)

LoadByLayer = dict[str, list[int]]
"""Layer name -> tokens by expert, all ranks' experts in order."""


def read_load(log_text: str) -> LoadByLayer:
    """Return the counts of the last line of each layer and rank; they count from the server's start."""
    ranks: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for found in _LINE.finditer(log_text):
        counts = [int(count) for count in found["tokens"].split(",") if count.strip()]
        ranks[found["layer"]][int(found["first"])] = counts
    return {layer: [count for first in sorted(by) for count in by[first]] for layer, by in ranks.items()}


def settled_load(log: Path, interval_s: float, *, needed: bool = True) -> LoadByLayer:
    """Return the counts once they have stopped to change: no new line for two of the server's logging intervals.

    Raises HarnessError when there is no line at all, unless none is needed: without warm-up no layer has run yet.
    """
    load = _read(log)
    quiet_since = time.monotonic()
    give_up = quiet_since + 60 * interval_s
    while time.monotonic() < give_up:
        time.sleep(interval_s / 4)
        now = _read(log)
        if now != load:
            load, quiet_since = now, time.monotonic()
        elif (load or not needed) and time.monotonic() - quiet_since > 2 * interval_s:
            return load
    if not load:
        raise HarnessError(f"the server has logged no expert load; does the operator run at all? See {log}")
    return load


def since(before: LoadByLayer, after: LoadByLayer) -> LoadByLayer:
    """Return what was added between two readings."""
    return {
        layer: [now - then for now, then in zip(counts, before.get(layer, [0] * len(counts)), strict=True)]
        for layer, counts in after.items()
    }


def _read(log: Path) -> LoadByLayer:
    return read_load(log.read_text(encoding="utf-8", errors="replace"))


def show_load(console: Console, load: LoadByLayer) -> None:
    """Print tokens per expert, a line for each layer."""
    table = Table("layer", *(f"e{expert}" for expert in range(max(map(len, load.values())))), "all")
    for column in table.columns[1:]:
        column.justify = "right"
    for layer in sorted(load):
        counts = load[layer]
        table.add_row(layer, *map(str, counts), str(sum(counts)))
    console.print(table)


def show_difference(console: Console, found: Difference, limit: float | None) -> None:
    """Print what the comparison found, and the limit that it is judged by if there is one."""
    console.print(f"    places compared: {found.places}, the baseline's likeliest tokens at each", highlight=False)
    console.print(f"    largest log-probability difference: [bold]{found.largest:.4f}[/] (mean {found.mean:.4f})")
    if limit is not None:
        console.print(f"    limit for a model in bf16: {limit}")
    console.print(
        f"    left to go on alone, greedily: {found.equal_tokens} of {found.tokens} tokens as the baseline's "
        "(one near-tie that falls the other way changes all that follow)"
    )
