"""Expert load into the log: read between steps by a thread of its own, never inside the per-layer call.

A layer counts on the device (`layer.state.ExpertLoad`), steps too, because a graph's replay is no step of the host's.
The thread copies the steps of all layers to the host in one piece, and the counts of a layer whose line is due. While
graphs are captured, or may be at any moment, it asks the device for nothing: that would break the capture.
"""

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from time import monotonic

import torch

from vllm_megamoe.environment import load_log_steps
from vllm_megamoe.layer.state import LayerState

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks."""

QUIET_S = 10.0
"""Seconds without a layer in a capture after which no graph is being captured any more."""


class LoadReport:
    """Logs `megamoe expert load: ...` for a layer every so many steps, and once more when it has gone idle.

    Counts are cumulative and include the warm-up. Idle means: no step since the look before the last one.

    Args:
        every_steps: 0 turns the report off; None asks VLLM_MEGAMOE_LOAD_LOG_STEPS when the first layer is watched.
        look_s: seconds between two looks of the thread; None: there is no thread, the caller asks for `lines`.
    """

    def __init__(self, every_steps: int | None = None, look_s: float | None = LOOK_S) -> None:
        self._every, self._look_s = every_steps, look_s
        self._layers: weakref.WeakSet[Watched] = weakref.WeakSet()
        # Layers are added while the thread looks at those that are there.
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, layer: LayerState, may_ask: Callable[[], bool] | None = None) -> "Watched":
        """Start to report on a layer; the caller keeps the result for as long as the layer lives.

        Args:
            layer: to report on.
            may_ask: whether no graph can be in its capture now; asked before each look. None: there are no graphs.

        Raises:
            ConfigError: the environment names no number of steps (the config stage has looked before).
        """
        watched = Watched(layer, may_ask)
        with self._lock:
            if self._every is None:
                self._every = load_log_steps()
            self._layers.add(watched)
            if self._thread is None and self._look_s is not None and self._every > 0:
                self._thread = threading.Thread(target=self._run, name="megamoe-expert-load", daemon=True)
                self._thread.start()
        return watched

    def lines(self) -> list[str]:
        """Look once: the lines that are due now, in the order of the layers' names."""
        with self._lock:
            layers, every = list(self._layers), self._every or 0
        if not every or not layers or not all(each.may_look() for each in layers):
            return []
        steps = torch.stack([watched.layer.load.steps for watched in layers]).tolist()
        due = [watched for watched, now in zip(layers, steps, strict=True) if watched.look(now, every)]
        return [watched.line() for watched in sorted(due, key=lambda w: w.layer.name)]

    def stop(self) -> None:
        """End the thread: a process must not end while it is inside of torch, which would abort it."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._look_s):
            for line in self.lines():
                logger.info("%s", line)


class Watched:
    """A layer, and what the log has told of it."""

    def __init__(self, layer: LayerState, may_ask: Callable[[], bool] | None) -> None:
        self.layer, self._may_ask = layer, may_ask
        self._seen: tuple[int, int] = 0, 0
        self._reported = 0

    def may_look(self) -> bool:
        """Whether the device may be asked for this layer's counters."""
        quiet = monotonic() - self.layer.captured_at >= QUIET_S
        return quiet and (self._may_ask is None or self._may_ask())

    def look(self, steps: int, every: int) -> bool:
        """Whether a line is due after so many steps in all."""
        rests, self._seen = self._seen == (steps, steps), (self._seen[1], steps)
        new = steps - self._reported
        return new >= every or (new > 0 and rests)

    def line(self) -> str:
        """The line, now; waits for the device."""
        layer, load = self.layer, self.layer.load
        self._reported = layer.steps
        first = layer.seat.rank * layer.plan.experts_per_rank
        dropped = "" if load.dropped is None else f" dropped={int(load.dropped)}"
        return (
            f"megamoe expert load: layer={layer.name} rank={layer.seat.rank} first_expert={first} "
            f"calls={layer.calls} tokens={load.counts.tolist()}{dropped}"
        )


REPORT = LoadReport()
"""That of this process."""
atexit.register(REPORT.stop)
