"""What the demo shows: how long it waits and for what, the experts' load as the server writes it, the comparison."""

import json
import time
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


LoadByLayer = dict[str, list[int]]
"""Layer name -> tokens by expert."""


def read_load(file: Path) -> LoadByLayer:
    """Return the counts of a load file that the server writes; none where it has served nothing yet."""
    if not file.exists():
        return {}
    layers = json.loads(file.read_text(encoding="utf-8"))["layers"]
    return {name: layer["rows"] for name, layer in layers.items() if any(layer["rows"])}


def settled_load(file: Path, interval_s: float) -> LoadByLayer:
    """Return the counts once they have stopped to change: the same for two of the server's intervals.

    Raises HarnessError when the server writes none.
    """
    load = read_load(file)
    quiet_since = time.monotonic()
    give_up = quiet_since + 60 * interval_s
    while time.monotonic() < give_up:
        time.sleep(interval_s / 4)
        now = read_load(file)
        if now != load:
            load, quiet_since = now, time.monotonic()
        elif load and time.monotonic() - quiet_since > 2 * interval_s:
            return load
    if not load:
        raise HarnessError(f"the server has told no expert load; does the operator run at all? See the log by {file}")
    return load


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
