"""The experts' load of a whole model: what all ranks have counted, and how the log says it in a few lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

WORST = 3
"""Layers that the log tells by name."""


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """One layer, over all ranks.

    Attributes:
        name: of the layer.
        index: number of the decoder layer, -1 where it is not known.
        draft: whether it belongs to a draft or MTP model.
        experts: the logical expert in each slot, [ranks * slots of a rank]; a redundant one stands in several.
        topk: experts per token.
        bound: rows that a call may bring to a rank.
        calls: operator calls of one rank.
        rows: that each slot has received, [ranks][slots of a rank].
        dropped: rows lost beyond the bound, on all ranks.
        largest: most rows that a call has brought to a rank since the start, None where no row can be lost.
    """

    name: str
    index: int
    draft: bool
    experts: tuple[int, ...]
    topk: int
    bound: int
    calls: int
    rows: tuple[tuple[int, ...], ...]
    dropped: int
    largest: int | None

    @property
    def total(self) -> int:
        """Rows that all experts have received: topk for each token."""
        return sum(map(sum, self.rows))

    @property
    def expert_imbalance(self) -> float:
        """The fullest slot's rows over the mean of all slots; 0 without rows."""
        slots = [rows for rank in self.rows for rows in rank]
        return max(slots) * len(slots) / self.total if self.total else 0.0

    @property
    def rank_imbalance(self) -> float:
        """The fullest rank's rows over the mean of all ranks; 0 without rows."""
        return max(map(sum, self.rows)) * len(self.rows) / self.total if self.total else 0.0

    @property
    def rows_per_call(self) -> float:
        """Rows that a rank brings to a call, on average; 0 without calls."""
        return self.total / (self.topk * len(self.rows) * self.calls) if self.calls else 0.0

    @property
    def headroom(self) -> float:
        """Share of the bound that an average call leaves free on the fullest rank; 1 without calls."""
        return 1 - max(map(sum, self.rows)) / (self.calls * self.bound) if self.calls else 1.0

    def by_expert(self) -> list[int]:
        """Rows of each logical expert, its copies added up."""
        found = [0] * (max(self.experts) + 1)
        for expert, rows in zip(self.experts, (rows for rank in self.rows for rows in rank), strict=True):
            found[expert] += rows
        return found

    def minus(self, before: "LayerLoad") -> "LayerLoad":
        """What has come since."""
        rows = tuple(
            tuple(now - then for now, then in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.rows, before.rows, strict=True)
        )
        return replace(self, calls=self.calls - before.calls, rows=rows, dropped=self.dropped - before.dropped)


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """All layers, in the order of their places in the model.

    Attributes:
        steps: of the engine.
        layers: see LayerLoad.
        silent: ranks whose counts have not come; they are 0 here.
    """

    steps: int
    layers: tuple[LayerLoad, ...]
    silent: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Rows that experts of all layers have received."""
        return sum(layer.total for layer in self.layers)

    @property
    def dropped(self) -> int:
        """Rows lost in all layers."""
        return sum(layer.dropped for layer in self.layers)

    def since(self, before: "ModelLoad | None") -> "ModelLoad":
        """What has come since; all of it where the layers are not those of before, or nothing was."""
        if before is None or [layer.experts for layer in before.layers] != [layer.experts for layer in self.layers]:
            return self
        layers = tuple(now.minus(then) for now, then in zip(self.layers, before.layers, strict=True))
        return replace(self, steps=self.steps - before.steps, layers=layers)


def told(period: ModelLoad) -> Iterator[str]:
    """The log's lines: one for the model, one for each of its worst layers."""
    layers = period.layers
    if not layers or not period.total:
        return
    ranks, calls = len(layers[0].rows), [layer.rows_per_call for layer in layers]
    silent = f" (nothing heard of ranks {', '.join(map(str, period.silent))})" if period.silent else ""
    yield (
        f"{period.steps} steps: {period.total} rows to the experts of {len(layers)} layers on {ranks} "
        f"ranks{silent}, {sum(calls) / len(calls):.1f} rows a call and rank, {period.dropped} dropped"
    )
    for layer in sorted(layers, key=lambda each: (each.dropped, each.expert_imbalance), reverse=True)[:WORST]:
        if layer.total:
            yield _told(layer)


def _told(layer: LayerLoad) -> str:
    width = len(layer.rows[0])
    flat = [rows for rank in layer.rows for rows in rank]
    hottest = max(range(len(flat)), key=flat.__getitem__)
    of_ranks = [sum(rank) for rank in layer.rows]
    fullest = max(range(len(of_ranks)), key=of_ranks.__getitem__)
    lost = f", {layer.dropped} rows dropped" if layer.dropped else ""
    return (
        f"{layer.name}: expert {layer.experts[hottest]} on rank {hottest // width} got {flat[hottest]} rows, "
        f"{layer.expert_imbalance:.2f} x the mean of {len(flat)}; rank {fullest} got {of_ranks[fullest]}, "
        f"{layer.rank_imbalance:.2f} x the mean of {len(of_ranks)}{lost}"
    )


def merged(facts: Sequence[dict[str, Any]], by_rank: Sequence[dict[str, Any] | None]) -> ModelLoad:
    """The model's load from what each rank has counted.

    Args:
        facts: of each layer, `name`, `index`, `draft`, `experts`, `topk`, `bound` as in LayerLoad.
        by_rank: `steps`, and in `layers` for each layer `calls`, `rows`, `dropped`, `largest` of that rank; None where
            nothing is known of it.
    """
    own = next(rank for rank in by_rank if rank is not None)
    layers = []
    for index, each in enumerate(facts):
        found = [None if rank is None else rank["layers"][index] for rank in by_rank]
        nothing = (0,) * (len(each["experts"]) // len(by_rank))
        largest = [rank["largest"] for rank in found if rank is not None and rank["largest"] is not None]
        layers.append(
            LayerLoad(
                **each,
                calls=own["layers"][index]["calls"],
                rows=tuple(nothing if rank is None else tuple(rank["rows"]) for rank in found),
                dropped=sum(rank["dropped"] for rank in found if rank is not None),
                largest=max(largest, default=None),
            )
        )
    silent = tuple(rank for rank, found in enumerate(by_rank) if found is None)
    return ModelLoad(own["steps"], tuple(layers), silent)
