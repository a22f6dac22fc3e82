"""What the ranks of one engine have counted: each leaves its own in a store, and rank 0 puts all together.

A rank copies its counters to the host in one piece. The store is the one that torch keeps for the communicator, so
ranks on other hosts are heard too and no collective is run.
"""

import json
import logging
from time import monotonic, sleep
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_process_group_store

from vllm_megamoe.layer.model_load import ModelLoad, merged
from vllm_megamoe.layer.state import LayerState

logger = logging.getLogger(__name__)

FRESH_S = 1.0
"""Seconds after which metrics are written anew while the engine is busy."""

PATIENCE = 4
"""Looks for which rank 0 waits for the others' counts of the same step."""

END_S = 3.0
"""Seconds that the last look may take when the process ends."""


class Readings:
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
