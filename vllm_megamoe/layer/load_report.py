"""Expert load into the log: read between steps by a thread of its own, never inside the per-layer call."""

import logging
import os
import threading
import weakref

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer.state import LayerState

logger = logging.getLogger(__name__)

STEPS_VARIABLE = "VLLM_MEGAMOE_LOAD_LOG_STEPS"
DEFAULT_STEPS = 100
LOOK_S = 0.5
"""Seconds between two looks at the layers' step counters, which are plain numbers of the host."""


class LoadReport:
    """Logs `megamoe expert load: ...` for a layer every so many steps, and once more when it has gone idle.

    Counts are cumulative and include the warm-up. Idle means: no step since the look before the last one.

    Args:
        every_steps: VLLM_MEGAMOE_LOAD_LOG_STEPS, 100 by default; 0 turns the report off.
    """

    def __init__(self, every_steps: int) -> None:
        self._every = every_steps
        self._layers: weakref.WeakSet[_Watched] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, layer: LayerState) -> "_Watched":
        """Start to report on a layer; the caller keeps the result for as long as the layer lives."""
        watched = _Watched(layer)
        self._layers.add(watched)
        if self._thread is None and self._every > 0:
            self._thread = threading.Thread(target=self._run, name="megamoe-expert-load", daemon=True)
            self._thread.start()
        return watched

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            for line in self.lines():
                logger.info("%s", line)

    def lines(self) -> list[str]:
        """Look once: the lines that are due now, in the order of the layers' names."""
        due = [watched for watched in self._layers if watched.look(self._every)]
        return [watched.line() for watched in sorted(due, key=lambda w: w.layer.name)]


class _Watched:
    def __init__(self, layer: LayerState) -> None:
        self.layer = layer
        self._seen: tuple[int, int] = 0, 0
        self._reported = 0

    def look(self, every: int) -> bool:
        """Whether a line is due."""
        steps, rests = self.layer.steps, self._seen == (self.layer.steps, self.layer.steps)
        self._seen = self._seen[1], steps
        new = steps - self._reported
        return new >= every or (new > 0 and rests)

    def line(self) -> str:
        layer, load = self.layer, self.layer.load
        self._reported = layer.steps
        first = layer.seat.rank * layer.plan.experts_per_rank
        dropped = "" if load.dropped is None else f" dropped={int(load.dropped)}"
        return (
            f"megamoe expert load: layer={layer.name} rank={layer.seat.rank} first_expert={first} "
            f"calls={layer.calls} tokens={load.counts.tolist()}{dropped}"
        )


def steps_from_environment() -> int:
    """The interval that the environment asks for.

    Raises:
        ConfigError: the variable holds no whole number from 0.
    """
    text = os.environ.get(STEPS_VARIABLE) or str(DEFAULT_STEPS)
    if not text.isdecimal():
        raise ConfigError(
            f"{STEPS_VARIABLE}={text!r}; expected a whole number of steps such as 100, or 0 for no report."
        )
    return int(text)


REPORT = LoadReport(steps_from_environment())
