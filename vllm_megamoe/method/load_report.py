"""Expert load into the log: read between steps by a thread of its own, never inside the per-layer call."""

import logging
import os
import threading
import weakref

from vllm_megamoe.method.layer_state import LayerState

logger = logging.getLogger(__name__)

INTERVAL_VARIABLE = "VLLM_MEGAMOE_LOAD_LOG_S"
DEFAULT_INTERVAL_S = 10.0


class LoadReport:
    """Logs `megamoe expert load: ...` for each layer whose counts have changed, every few seconds.

    Counts are cumulative and include the warm-up. VLLM_MEGAMOE_LOAD_LOG_S sets the interval in seconds; 0 turns it off.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._layers: weakref.WeakSet[_Watched] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, layer: LayerState) -> "_Watched":
        """Start to report on a layer; the caller keeps the result for as long as the layer lives."""
        watched = _Watched(layer)
        self._layers.add(watched)
        if self._thread is None and self._interval_s > 0:
            self._thread = threading.Thread(target=self._run, name="megamoe-expert-load", daemon=True)
            self._thread.start()
        return watched

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._interval_s):
            for line in self.lines():
                logger.info("%s", line)

    def lines(self) -> list[str]:
        """The lines that are due now, in the order of the layers' names."""
        due = [watched for watched in self._layers if watched.layer.calls != watched.reported]
        return [watched.line() for watched in sorted(due, key=lambda w: w.layer.name)]


class _Watched:
    def __init__(self, layer: LayerState) -> None:
        self.layer = layer
        self.reported = 0

    def line(self) -> str:
        self.reported = calls = self.layer.calls
        first = self.layer.seat.rank * self.layer.plan.experts_per_rank
        return (
            f"megamoe expert load: layer={self.layer.name} rank={self.layer.seat.rank} first_expert={first} "
            f"calls={calls} tokens={self.layer.counts.tolist()}"
        )


REPORT = LoadReport(float(os.environ.get(INTERVAL_VARIABLE, DEFAULT_INTERVAL_S)))
