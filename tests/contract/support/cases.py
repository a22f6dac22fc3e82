"""The layers that the suite sends through our method, as data that ranks and tests share."""

from dataclasses import dataclass, field
from typing import Any

HIDDEN, EXPERTS, TOPK, RANKS = 1024, 8, 2, 2
LIMIT = 513
"""max_num_batched_tokens of every case: odd, so that the last rank has one row more than the mask's own buffer."""


@dataclass(frozen=True)
class Case:
    """One layer under one set of options.

    Attributes:
        name: of the case.
        use_case: that it must run as.
        weights: BF16, or msModelSlim's type of every expert.
        intermediate: width of an expert.
        shared: shared experts of that width, which vLLM joins to one MLP.
        fused: whether the operator runs them.
        options: the megamoe block of additional_config.
        tokens: of the steps.
        scaling: routed_scaling_factor.
        theirs: keys of additional_config that are vllm-ascend's own.
    """

    name: str
    use_case: str = "a16w16"
    weights: str = "BF16"
    intermediate: int = 1024
    shared: int = 0
    fused: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[int, ...] = (1, 5, 16, LIMIT)
    scaling: float = 1.0
    theirs: dict[str, Any] = field(default_factory=dict)

    @property
    def homes(self) -> list[tuple[str, int]]:
        """The MLPs of the block by their names in it, with their widths; shared experts last."""
        found = [(f"experts.{expert}", self.intermediate) for expert in range(EXPERTS)]
        return found + ([("shared_experts", self.shared * self.intermediate)] if self.shared else [])

    @property
    def description(self) -> dict[str, str] | None:
        """What msModelSlim writes beside the checkpoint: weight -> type; None for BF16."""
        if self.weights == "BF16":
            return None
        listed = {
            f"model.layers.0.mlp.{home}.{name}_proj.weight": self.weights
            for home, _ in self.homes
            for name in ("gate", "up", "down")
        }
        return {
            "version": "1.0.0",
            "model_quant_type": self.weights,
            "model.layers.0.mlp.gate.weight": "FLOAT",
        } | listed


SHORT = (1, 5, 16)
FP8: dict[str, Any] = {"use_case": "a8w8-fp", "requant": "allow"}
"""A 950 has no BF16 experts: by consent they become FP8."""


OVERLAP: dict[str, Any] = {"multistream_overlap_shared_expert": True}
"""vllm-ascend's switch of a second stream for shared experts."""


def _a2_a3() -> tuple[Case, ...]:
    return (
        Case("bf16"),
        Case("narrow", intermediate=768),
        Case("shared", shared=2, scaling=2.5),
        Case("pieces", options={"workspace_budget_gib": 0.03126}, tokens=(LIMIT,)),
        Case("w8a8", "a8w8-int", "W8A8_DYNAMIC", tokens=SHORT),
        Case("w4a8", "a8w4-int", "W4A8_DYNAMIC", tokens=SHORT),
    )


CASES: dict[str, tuple[Case, ...]] = {
    "a2@9.1": (
        Case("bf16", tokens=SHORT),
        Case("pieces", options={"workspace_budget_gib": 0.03126}, tokens=(LIMIT,)),
        Case("w8a8", "a8w8-int", "W8A8_DYNAMIC", tokens=SHORT),
        Case("w4a8", "a8w4-int", "W4A8_DYNAMIC", tokens=SHORT),
    ),
    "a2@9.2": _a2_a3(),
    "a3@9.1": _a2_a3(),
    "a3@9.2": (
        *_a2_a3(),
        Case("overlap", shared=2, scaling=2.5, theirs=OVERLAP, tokens=SHORT),
    ),
    "950@9.2": (
        Case("bf16", "a8w8-fp", options=FP8),
        Case("narrow", "a8w8-fp", intermediate=768, options=FP8),
        Case("shared", "a8w8-fp", shared=2, scaling=2.5, options=FP8 | {"fuse_shared_experts": "off"}),
        Case("fused", "a8w8-fp", shared=2, fused=True, scaling=2.5, options=FP8),
        Case("pieces", "a8w8-fp", options=FP8 | {"workspace_budget_gib": 0.05}, tokens=(LIMIT,)),
        Case("mxfp8", "a8w8-fp", "W8A8_MXFP8", tokens=SHORT),
        Case("overlap fused", "a8w8-fp", shared=2, fused=True, theirs=OVERLAP, options=FP8, tokens=SHORT),
        Case("mxfp8 fused", "a8w8-fp", "W8A8_MXFP8", shared=1, fused=True, tokens=SHORT),
        Case("w4a8 mxfp", "a8w4-fp", "W4A8_MXFP", tokens=SHORT),
        Case("mxfp4", "a4w4-fp", "W4A4_MXFP4", tokens=SHORT),
    ),
}
"""By product."""
