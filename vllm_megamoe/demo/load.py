"""Expert load: how many tokens each expert of each layer got, read from the server's log."""

import re
import time
from collections import defaultdict
from pathlib import Path

from vllm_megamoe.demo.failure import DemoError

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

    Raises DemoError when there is no line at all, unless none is needed: a server without warm-up has run no layer yet.
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
        raise DemoError(f"the server has logged no expert load; does the operator run at all? See {log}")
    return load


def since(before: LoadByLayer, after: LoadByLayer) -> LoadByLayer:
    """Return what was added between two readings."""
    return {
        layer: [now - then for now, then in zip(counts, before.get(layer, [0] * len(counts)), strict=True)]
        for layer, counts in after.items()
    }


def _read(log: Path) -> LoadByLayer:
    return read_load(log.read_text(encoding="utf-8", errors="replace"))
