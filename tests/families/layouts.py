"""Ways of laying a model over ranks, and which families run together in the processes of each."""

from dataclasses import dataclass, field
from typing import Any

from families.models import FAMILIES

_TENSOR = {
    "tensor_parallel_size": 2,
    "enable_expert_parallel": True,
    "distributed_executor_backend": "external_launcher",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine lies over its ranks.

    Attributes:
        ranks: processes.
        llm: vLLM's arguments.
        replicas: data-parallel replicas, each with prompts of its own; their ranks follow each other.
        own: whether vLLM's own MoE runs in this layout too, as what all are compared with.
        some: the families that run in it, all in one go; empty for all of them, those of `make test` apart.
    """

    ranks: int
    llm: dict[str, Any] = field(default_factory=dict)
    replicas: int = 1
    own: bool = False
    some: tuple[str, ...] = ()

    def replica_of(self, rank: int) -> int:
        return rank * self.replicas // self.ranks


LAYOUTS: dict[str, Layout] = {
    "one rank": Layout(1, own=True),
    "tensor parallel": Layout(2, _TENSOR),
    "data parallel": Layout(
        2,
        {**_TENSOR, "tensor_parallel_size": 1, "data_parallel_size": 2},
        replicas=2,
        some=("qwen2_moe", "deepseek_v2", "glm4_moe"),
    ),
    # Rows are cut over the tensor-parallel ranks by the model itself (vLLM's sequence-parallel MoE).
    "tensor and data parallel": Layout(4, {**_TENSOR, "data_parallel_size": 2}, replicas=2, some=("deepseek_v2",)),
    "compiled": Layout(2, {**_TENSOR, "enforce_eager": False}, some=("qwen2_moe", "deepseek_v2")),
}


def groups(layout: str) -> list[list[tuple[str, str]]]:
    """Families and modes of a layout, by the processes that serve them; a mode `own` is vLLM's own MoE."""
    chosen = LAYOUTS[layout].some
    parts = [chosen] if chosen else [[n for n, f in FAMILIES.items() if f.every_run == e] for e in (True, False)]
    own = ["own"] if LAYOUTS[layout].own else []
    return [[(name, mode) for name in part for mode in own + FAMILIES[name].modes] for part in parts]


def in_every_run(layout: str, family: str) -> bool:
    """Whether `make test` serves this, or only `make test-full`."""
    return not LAYOUTS[layout].some and FAMILIES[family].every_run
