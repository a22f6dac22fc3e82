"""Expert load for the log and for metrics: read between steps by a thread of its own, never inside the per-layer call.

    layers of a rank  ->  one reading  ->  the communicator's store  ->  rank 0: `ModelLoad`  ->  log, metrics, file

Each rank's thread copies its counters to the host in one piece and leaves them in the store that torch keeps for the
communicator, so ranks on other hosts are heard too and no collective is run. While graphs are captured, or may be at
any moment, it asks the device for nothing: that would break the capture.
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
from time import monotonic, sleep
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_process_group_store

from vllm_megamoe.environment import load_file, load_log_steps
from vllm_megamoe.layer.model_load import ModelLoad, merged, told
from vllm_megamoe.layer.state import LayerState

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks."""

QUIET_S = 10.0
"""Seconds without a layer in a capture after which no graph is being captured any more."""

FRESH_S = 1.0
"""Seconds after which metrics are written anew while the engine is busy."""

PATIENCE = 4
"""Looks for which rank 0 waits for the others' counts of the same step."""

END_S = 3.0
"""Seconds that the last look may take when the process ends."""

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
        self._models: dict[object, _Model] = {}

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
            model = self._models[engine] = _Model(layers)
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


class _Model:
    """The layers of one engine on this rank, and what has been told of them."""

    def __init__(self, layers: list[LayerState]) -> None:
        self._names = [layer.name for layer in layers]
        self._rank, self._size = layers[0].seat.rank, layers[0].seat.size
        group = layers[0].seat.group
        self._store = _get_process_group_store(group) if isinstance(group, ProcessGroup) else None
        self._seen: tuple[int, int] = -1, -1
        self._left: dict[str, Any] | None = None
        self._logged: ModelLoad | None = None
        self._told_steps, self._told_at, self._waited = -1, 0.0, 0

    def is_of(self, layers: list[LayerState]) -> bool:
        return self._names == [layer.name for layer in layers]

    def look(self, layers: list[LayerState], every: int, *, last: bool) -> tuple[ModelLoad, ModelLoad | None] | None:
        """Leave this rank's counts; on rank 0, where something is due: all there is, and what the log is due."""
        steps = int(layers[0].load.steps)
        rests, self._seen = self._seen == (steps, steps), (self._seen[1], steps)
        if self._left is None or steps != self._left["steps"]:
            self._left = _read(layers, steps)
            self._leave(self._left)
        if self._rank:
            return None
        logged = 0 if self._logged is None else self._logged.steps
        due = every > 0 and (steps - logged >= every or (steps > logged and (last or rests)))
        fresh = steps != self._told_steps and (last or rests or monotonic() - self._told_at >= FRESH_S)
        by_rank = self._gather(self._left, last=last) if due or fresh else None
        if by_rank is None:
            return None
        whole = merged([_facts(layer) for layer in layers], by_rank)
        self._told_steps, self._told_at = steps, monotonic()
        if not due:
            return whole, None
        period, self._logged = whole.since(self._logged), whole
        return whole, period

    def _leave(self, counted: dict[str, Any]) -> None:
        if self._store is not None and self._rank:
            try:
                self._store.set(self._key(self._rank), json.dumps(counted))
            except RuntimeError as error:
                self._lose(error)

    def _gather(self, own: dict[str, Any], *, last: bool) -> list[dict[str, Any] | None] | None:
        """What each rank has left; None to look again, because one has not come as far as this one."""
        deadline = monotonic() + (END_S / 2 if last else 0.0)
        while True:
            found = [own, *(self._left_by(rank) for rank in range(1, self._size))]
            behind = any(rank is None or rank["steps"] < own["steps"] for rank in found)
            if not behind or self._store is None or monotonic() >= deadline:
                break
            sleep(0.05)
        self._waited = self._waited + 1 if behind and self._store is not None and not last else 0
        return None if 0 < self._waited < PATIENCE else found

    def _left_by(self, rank: int) -> dict[str, Any] | None:
        try:
            # `get` alone would wait for a rank that has left nothing.
            if self._store is None or not self._store.check([self._key(rank)]):
                return None
            found: dict[str, Any] = json.loads(self._store.get(self._key(rank)))
        except RuntimeError as error:
            self._lose(error)
            return None
        return found

    def _lose(self, error: RuntimeError) -> None:
        """The store's host is gone, and the engine ends with it; what this rank has counted is all that is told."""
        logger.debug("megamoe expert load: the store of the ranks is gone: %s", error)
        self._store = None

    def _key(self, rank: int) -> str:
        return f"megamoe/expert-load/{self._names[0]}/{rank}"


def _place(layer: LayerState) -> tuple[bool, int, str]:
    return layer.plan.facts.draft, layer.plan.facts.index, layer.name


def _facts(layer: LayerState) -> dict[str, Any]:
    capacity = layer.plan.capacity
    return {
        "name": layer.name,
        "index": layer.plan.facts.index,
        "draft": layer.plan.facts.draft,
        "experts": layer.plan.slots or tuple(range(layer.plan.buffer.num_experts)),
        "topk": layer.plan.facts.topk,
        "bound": capacity.max_recv_token_num or capacity.receive_bound,
    }


def _read(layers: list[LayerState], steps: int) -> dict[str, Any]:
    """This rank's counters after so many steps, in four copies from the device whatever the number of layers."""
    loads = [layer.load for layer in layers]
    counts = torch.cat([load.counts for load in loads]).tolist()
    calls = torch.stack([load.calls for load in loads]).tolist()
    nothing = torch.zeros_like(loads[0].counts[0])
    lost = [(load.dropped, load.largest) for load in loads]
    dropped = torch.stack([nothing if a is None else a for a, _ in lost]).tolist()
    largest = torch.stack([nothing if b is None else b for _, b in lost]).tolist()
    found, start = [], 0
    for load, made, gone, most in zip(loads, calls, dropped, largest, strict=True):
        stop = start + len(load.counts)
        known = None if load.largest is None else most
        found.append({"calls": made, "rows": counts[start:stop], "dropped": gone, "largest": known})
        start = stop
    return {"steps": steps, "layers": found}


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


LOAD_FORMAT = "megamoe expert load 1"

REPORT = LoadReport()
"""That of this process."""
atexit.register(REPORT.stop)
