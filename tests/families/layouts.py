"""Ways of laying a model over ranks, and which families run in each."""

from dataclasses import dataclass, field
from typing import Any

from families.models import FAMILIES

from vllm_megamoe.testing.engines import TENSOR_PARALLEL


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine lies over its ranks.

    Attributes:
        ranks: processes.
        llm: vLLM's arguments.
        replicas: data-parallel replicas, each with prompts of its own; their ranks follow each other.
        own: whether vLLM's own MoE runs in this layout too, as what all are compared with.
        some: the families that run in it, in `make test-full` alone; empty for all of them.
        compiled: whether vLLM compiles the model, for which it needs a C++ compiler.
    """

    ranks: int
    llm: dict[str, Any] = field(default_factory=dict)
    replicas: int = 1
    own: bool = False
    some: tuple[str, ...] = ()
    compiled: bool = False

    def replica_of(self, rank: int) -> int:
        return rank * self.replicas // self.ranks


LAYOUTS: dict[str, Layout] = {
    "one rank": Layout(1, own=True),
    "tensor parallel": Layout(2, TENSOR_PARALLEL),
    "data parallel": Layout(
        2,
        {**TENSOR_PARALLEL, "tensor_parallel_size": 1, "data_parallel_size": 2},
        replicas=2,
        some=("qwen2_moe", "deepseek_v2", "glm4_moe"),
    ),
    # Rows are cut over the tensor-parallel ranks by the model itself (vLLM's sequence-parallel MoE).
    "tensor and data parallel": Layout(
        4, {**TENSOR_PARALLEL, "data_parallel_size": 2}, replicas=2, some=("deepseek_v2",)
    ),
    "compiled": Layout(
        2, {**TENSOR_PARALLEL, "enforce_eager": False}, some=("qwen2_moe", "deepseek_v2"), compiled=True
    ),
}


def engines(layout: str) -> list[tuple[str, str]]:
    """Families and modes of a layout; a mode `own` is vLLM's own MoE."""
    own = ["own"] if LAYOUTS[layout].own else []
    return [(name, mode) for name in LAYOUTS[layout].some or FAMILIES for mode in own + FAMILIES[name].modes]


def in_every_run(layout: str, family: str) -> bool:
    """Whether `make test` serves this, or only `make test-full`."""
    return not LAYOUTS[layout].some and FAMILIES[family].every_run
