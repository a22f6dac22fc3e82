"""The layers that the suite sends through our method, as data that ranks and tests share, and their checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from contract.support.values import tensor_for
from torch import Tensor

HIDDEN, EXPERTS, TOPK, RANKS = 1024, 8, 2, 2
LIMIT = 513
"""max_num_batched_tokens of every case: odd, so that the last rank has one row more than the mask's own buffer."""


@dataclass(frozen=True)
class Case:
    """One layer under one set of options.

    Attributes:
        name: of the case.
        intermediate: width of an expert.
        shared: shared experts of that width, which vLLM joins to one MLP.
        options: the megamoe block of additional_config.
        tokens: of the steps.
        scaling: routed_scaling_factor.
    """

    name: str
    intermediate: int = 1024
    shared: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[int, ...] = (1, 5, 16, LIMIT)
    scaling: float = 1.0

    def checkpoint(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the block by its name in the block."""
        yield "gate.weight", tensor_for("gate.weight", (EXPERTS, HIDDEN), torch.bfloat16)
        homes = [(f"experts.{expert}", self.intermediate) for expert in range(EXPERTS)]
        if self.shared:
            homes.append(("shared_experts", self.shared * self.intermediate))
        for home, width in homes:
            for name, shape in (("gate", (width, HIDDEN)), ("up", (width, HIDDEN)), ("down", (HIDDEN, width))):
                full = f"{home}.{name}_proj.weight"
                yield full, tensor_for(full, shape, torch.bfloat16)


FP8 = {"use_case": "a8w8-fp", "requant": "allow"}
"""A 950 has no BF16 experts: by consent they become FP8."""

CASES: dict[str, tuple[Case, ...]] = {
    **dict.fromkeys(
        ("a2@9.2", "a3@9.1", "a3@9.2"),
        (
            Case("bf16"),
            Case("narrow", intermediate=768),
            Case("shared", shared=2, scaling=2.5),
            Case("pieces", options={"workspace_budget_gib": 0.03126}, tokens=(LIMIT,)),
        ),
    ),
    "950@9.2": (
        Case("bf16", options=FP8),
        Case("narrow", intermediate=768, options=FP8),
        Case("shared", shared=2, scaling=2.5, options=FP8 | {"fuse_shared_experts": "off"}),
        Case("pieces", options=FP8 | {"workspace_budget_gib": 0.05}, tokens=(LIMIT,)),
    ),
}
"""By product."""
