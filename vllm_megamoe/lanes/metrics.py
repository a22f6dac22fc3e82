"""Prometheus metrics on vLLM's own /metrics: few series for a whole model, whatever its layers and ranks.

    rank 0 of the experts' ranks, a worker   writes files as prometheus_client's multi-process mode has them
    several API servers                      read them as they read vLLM's own, in PROMETHEUS_MULTIPROC_DIR
    one API server, or `LLM`                 has a collector of ours over a folder that its process makes

vLLM's engine tells its servers nothing of workers, so this way goes beside it. Where vLLM has set
PROMETHEUS_MULTIPROC_DIR, all processes inherit it and /metrics has nothing but what lies there; without it /metrics
has the registry of the server's process (vLLM 0.32, v1/metrics/prometheus.py).
"""

import atexit
import itertools
import logging
import os
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from prometheus_client import REGISTRY
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from vllm_megamoe.environment import SIMULATED_NPU, simulated_profile
from vllm_megamoe.layer.model_load import LayerLoad, ModelLoad
from vllm_megamoe.ops.backend import resolve
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.screen import number_runs

logger = logging.getLogger(__name__)

PREFIX = "vllm:megamoe_"
MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's variable, set by vLLM where it starts several API servers."""

WINDOW_S = 30.0
"""Seconds back, at least, that ratios and averages look: a step of one token says nothing about balance."""

MOST_GROUPS = 8
"""Series of a metric that has one for each group of layers, draft layers apart."""

Labels = dict[str, str]
Values = Iterator[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: without PREFIX; of a counter with its `_total`.
        kind: counters grow from the engine's start on, gauges are of the last WINDOW_S.
        help: what /metrics says of it.
        values: all that was counted, and what came in the window -> values with their own labels.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    values: Callable[[ModelLoad, ModelLoad], Values]


def groups(load: ModelLoad) -> list[tuple[str, list[LayerLoad]]]:
    """Layers in consecutive groups of equal size, at most MOST_GROUPS, named like `8-15`; draft layers apart."""
    main = [layer for layer in load.layers if not layer.draft]
    size = -(-len(main) // MOST_GROUPS) or 1
    cut = [main[start : start + size] for start in range(0, len(main), size)]
    found = [(number_runs(layer.index for layer in part) or part[0].name, part) for part in cut]
    drafts = [layer for layer in load.layers if layer.draft]
    return [*found, ("draft", drafts)] if drafts else found


def _worst(of: Callable[[LayerLoad], float], pick: Callable[..., float] = max) -> Callable[..., Values]:
    def values(whole: ModelLoad, window: ModelLoad) -> Values:
        del whole
        for name, layers in groups(window):
            yield {"layers": name}, pick(of(layer) for layer in layers)

    return values


def _rows(whole: ModelLoad, window: ModelLoad) -> Values:
    del window
    yield {}, whole.total


def _calls(whole: ModelLoad, window: ModelLoad) -> Values:
    del window
    yield {}, sum(layer.calls * len(layer.rows) for layer in whole.layers)


def _dropped(whole: ModelLoad, window: ModelLoad) -> Values:
    del window
    for name, layers in groups(whole):
        yield {"layers": name}, sum(layer.dropped for layer in layers)


def _rows_per_call(whole: ModelLoad, window: ModelLoad) -> Values:
    del whole
    yield {}, sum(layer.rows_per_call for layer in window.layers) / len(window.layers)


def _largest(whole: ModelLoad, window: ModelLoad) -> Values:
    del window
    found = [1 - layer.largest / layer.bound for layer in whole.layers if layer.largest is not None]
    if found:
        yield {}, min(found)


METRICS = (
    Metric(
        "expert_load_max_over_mean",
        "gauge",
        "Rows of the fullest expert slot over the mean of all slots, in the worst layer of the group; 0 without rows.",
        _worst(lambda layer: layer.expert_imbalance),
    ),
    Metric(
        "rank_load_max_over_mean",
        "gauge",
        "Rows of the fullest rank's experts over the mean of all ranks, in the worst layer of the group; 0 without "
        "rows.",
        _worst(lambda layer: layer.rank_imbalance),
    ),
    Metric(
        "receive_headroom",
        "gauge",
        "Share of the receive bound that an average call leaves free on the fullest rank, in the worst layer of the "
        "group.",
        _worst(lambda layer: layer.headroom, min),
    ),
    Metric(
        "receive_headroom_least",
        "gauge",
        "Share of max_recv_token_num that the largest call since the start has left free; below 0 rows were dropped. "
        "Only where the plan allows drops.",
        _largest,
    ),
    Metric("rows_per_call", "gauge", "Rows that a rank brings to an operator call, on average.", _rows_per_call),
    Metric("expert_rows_total", "counter", "Rows that experts have received, topk for each token and layer.", _rows),
    Metric("operator_calls_total", "counter", "Calls of the operator, of all layers and ranks.", _calls),
    Metric("dropped_rows_total", "counter", "Rows beyond max_recv_token_num, which are dropped.", _dropped),
)
"""All but `info`, whose labels are the plan's: backend (twin or device), profile, ranks, layers."""


@cache
def offer(*, tells: bool = True) -> str:
    """Ready this process for the metrics of its engines, once; return the folder that they are written to.

    Called where the engine's config is made: that is the API server's process, or the one that starts several.

    Args:
        tells: whether this process says the totals at its end: vLLM kills workers on SIGTERM (--shutdown-timeout 0)
            before they can say the rest of theirs.
    """
    folder, ours = os.environ.get(MULTIPROC, ""), False
    if not folder:
        folder, ours = tempfile.mkdtemp(prefix="megamoe-metrics-"), True
        REGISTRY.register(MultiProcessCollector(None, path=folder))  # type: ignore[no-untyped-call]
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:
            return
        if tells and (said := totals(folder)):
            logger.info("megamoe expert load: all told: %s", said)
        if ours:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return folder


def totals(folder: str) -> str:
    """The counters in a folder, in words; empty where no engine has run."""
    files = [str(path) for path in Path(folder).glob("counter_*-megamoe*.db")]
    found: Counter[str] = Counter()
    for metric in MultiProcessCollector.merge(files) if files else ():  # type: ignore[no-untyped-call]
        for sample in metric.samples:
            found[sample.name.removeprefix(PREFIX)] += int(sample.value)
    if not found["operator_calls_total"]:
        return ""
    rows, calls, dropped = (found[f"{name}_total"] for name in ("expert_rows", "operator_calls", "dropped_rows"))
    return f"{rows} rows to experts in {calls} operator calls, {dropped} dropped"


class Written:
    """Writes an engine's metrics into files that prometheus_client's multi-process collector reads.

    Args:
        folder: see `offer`.
        model: the model's name, as vLLM's own metrics have it.
        plan: of the engine.
    """

    _numbers = itertools.count()

    def __init__(self, folder: str, model: str, plan: Plan) -> None:
        self._folder, self._model, self._plan = Path(folder), model, plan
        self._files: dict[str, MmapedDict] = {}
        self._number = next(self._numbers)
        self._seen: deque[tuple[float, ModelLoad]] = deque()

    def __call__(self, whole: ModelLoad) -> None:
        """Write what holds now; nothing where the folder is gone, because the server has ended."""
        if not whole.layers or not self._folder.is_dir():
            return
        now = time.monotonic()
        while len(self._seen) > 1 and now - self._seen[1][0] >= WINDOW_S:
            self._seen.popleft()
        window = whole.since(self._seen[0][1]) if self._seen else whole
        self._seen.append((now, whole))
        if not self._files:
            self._write("info", "gauge", "How the MoE layers run; always 1.", self._info(), 1.0)
        for metric in METRICS:
            for labels, value in metric.values(whole, window):
                self._write(metric.name, metric.kind, metric.help, labels, value)

    def _info(self) -> Labels:
        plan = self._plan
        real = "simulator" if simulated_profile() or SIMULATED_NPU.read() else "device"
        return {
            "backend": "twin" if resolve(plan.options.backend) == "cpu" else real,
            "profile": plan.profile.name,
            "ranks": str(plan.engine.ep_size),
            "layers": str(len(plan.layers)),
        }

    def _write(self, name: str, kind: str, text: str, labels: Labels, value: float) -> None:
        file = self._files.get(kind)
        if file is None:
            mode = "gauge_mostrecent" if kind == "gauge" else kind
            # A file of our own beside prometheus_client's of this process, which has the bare number of the process.
            path = self._folder / f"{mode}_{os.getpid()}-megamoe{self._number}.db"
            file = self._files[kind] = MmapedDict(str(path))  # type: ignore[no-untyped-call]
        own = {"model_name": self._model, **labels}
        sample = PREFIX + name
        key = mmap_key(sample.removesuffix("_total"), sample, list(own), list(own.values()), text)
        file.write_value(key, value, time.time())  # type: ignore[no-untyped-call]


def served_name(vllm_config: Any) -> str:
    """The model's name in vLLM's own metrics."""
    name = vllm_config.model_config.served_model_name
    return str(name[0] if isinstance(name, list) else name)
