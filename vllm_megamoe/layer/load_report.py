"""Expert load for the log and for metrics: read between steps by a thread of its own, never inside the per-layer call.

    layers of a rank  ->  one reading  ->  the communicator's store  ->  rank 0: `ModelLoad`  ->  log, metrics, file

How the ranks hear each other is `layer.load_readings`. While graphs are captured, or may be at any moment, the thread
asks the device for nothing: that would break the capture.
"""

import atexit
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from time import monotonic

from vllm_megamoe.environment import load_file, load_log_steps
from vllm_megamoe.layer.load_readings import END_S, Readings
from vllm_megamoe.layer.model_load import ModelLoad, told
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.placement import LOAD_FORMAT

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks."""

QUIET_S = 10.0
"""Seconds without a layer in a capture after which no graph is being captured any more."""

Sink = Callable[[ModelLoad], None]
"""Takes all that was counted since the start."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is told of an engine's layers beside the log.

    Attributes:
        engine: a key that the layers of one engine have in common.
        sink: told every FRESH_S, and when the engine goes idle; None for nobody.
        serves: whether the engine is complete and warm: before, nothing is told.
    """

    engine: object = None
    sink: Sink | None = None
    serves: Callable[[], bool] = _always


class LoadReport:
    """Tells the expert load of this process's layers, on rank 0 that of all ranks.

    The log has it every so many steps, once more when the engine goes idle, and at the end of the process; an audience
    has it every FRESH_S and at those times too. Idle means: no step since the look before the last one.

    Args:
        every_steps: 0 keeps it out of the log; None asks VLLM_MEGAMOE_LOAD_LOG_STEPS when the first layer is watched.
        look_s: seconds between two looks of the thread; None: there is no thread, the caller asks for `lines`.
    """

    def __init__(self, every_steps: int | None = None, look_s: float | None = LOOK_S) -> None:
        self._every, self._look_s = every_steps, look_s
        self._file: Path | None = None
        self._layers: weakref.WeakSet[Watched] = weakref.WeakSet()
        # Layers are added while the thread looks at those that are there.
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._models: dict[object, Readings] = {}

    def watch(
        self, layer: LayerState, audience: Audience | None = None, may_ask: Callable[[], bool] = _always
    ) -> "Watched":
        """Start to report on a layer; the caller keeps the result for as long as the layer lives.

        Args:
            layer: to report on.
            audience: who is told beside the log; None for nobody.
            may_ask: whether no graph can be in its capture now; asked before each look.

        Raises:
            ConfigError: the environment names no number of steps, or no file (the config stage has looked before).
        """
        watched = Watched(layer, audience or Audience(), may_ask)
        with self._lock:
            if self._every is None:
                self._every, self._file = load_log_steps(), load_file()
            # The last layer of a step counts it: whoever reads steps first and rows then has all rows of these steps.
            for other in self._layers:
                if other.pace == watched.pace:
                    other.layer.load.pacer = layer.load
            self._layers.add(watched)
            if self._thread is None and self._look_s is not None:
                self._thread = threading.Thread(target=self._run, name="megamoe-expert-load", daemon=True)
                self._thread.start()
                # A process of multiprocessing's ends without `atexit`.
                Finalize(None, self.stop, exitpriority=10)
        return watched

    def lines(self, *, last: bool = False) -> list[str]:
        """Look once: tell the audiences, and return what is due for the log.

        Args:
            last: the process ends: what has not been told is due.
        """
        engines: dict[object, list[Watched]] = {}
        with self._lock:
            for watched in sorted(self._layers, key=lambda each: _place(each.layer)):
                engines.setdefault(watched.audience.engine, []).append(watched)
        self._models = {engine: model for engine, model in self._models.items() if engine in engines}
        return [line for engine, found in engines.items() for line in self._look(engine, found, last=last)]

    def _look(self, engine: object, found: "list[Watched]", *, last: bool) -> list[str]:
        layers, audience = [each.layer for each in found], found[0].audience
        if not all(each.may_look() for each in found) or not audience.serves():
            return []
        model = self._models.get(engine)
        if model is None or not model.is_of(layers):
            model = self._models[engine] = Readings(layers)
        news = model.look(layers, self._every or 0, last=last)
        if news is None:
            return []
        whole, period = news
        if audience.sink is not None:
            audience.sink(whole)
        if self._file is not None:
            write_load(self._file, whole)
        return [] if period is None else list(told(period))

    def stop(self) -> None:
        """Have the rest told and end the thread: a process must not end while it is inside of torch."""
        self._end.set()
        if self._thread is not None:
            # A store whose host has died may keep the last look for longer; nothing of it is worth waiting for.
            self._thread.join(END_S)

    def _run(self) -> None:
        ends = False
        while not ends:
            ends = self._end.wait(self._look_s)
            for line in self.lines(last=ends):
                logger.info("megamoe expert load: %s", line)


class Watched:
    """A layer, who is told of it, and with which others it makes the same calls."""

    def __init__(self, layer: LayerState, audience: Audience, may_ask: Callable[[], bool]) -> None:
        self.layer, self.audience, self._may_ask = layer, audience, may_ask
        self.pace = audience.engine, id(layer.buffer), layer.plan.facts.draft

    def may_look(self) -> bool:
        """Whether the device may be asked for this layer's counters."""
        return monotonic() - self.layer.captured_at >= QUIET_S and self._may_ask()


def _place(layer: LayerState) -> tuple[bool, int, str]:
    return layer.plan.facts.draft, layer.plan.facts.index, layer.name


def write_load(file: Path, load: ModelLoad) -> None:
    """Write a load file: rows of each expert of each layer, from the engine's start on (docs/balance.md)."""
    content = {
        "format": LOAD_FORMAT,
        "steps": load.steps,
        "layers": {layer.name: {"rows": layer.by_expert(), "dropped": layer.dropped} for layer in load.layers},
    }
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, file)
    except OSError as error:
        logger.warning("megamoe: the load file %s cannot be written: %s", file, error)


REPORT = LoadReport()
"""That of this process."""
atexit.register(REPORT.stop)
