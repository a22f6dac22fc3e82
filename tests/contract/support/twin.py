"""The operator's twin beside a running layer: the same rows on the same ranks, operands from the checkpoint's numbers.

Runs in a rank. Nothing of the layer's own loading or method is used.
"""

from typing import Any

import torch
from contract.support.cases import EXPERTS, HIDDEN, LIMIT, TOPK, Case
from contract.support.weights import Projection, projections
from torch import Tensor

from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.convert import convert, transform_weights_for_mega_moe
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.profiles.use_cases import UseCase

ELEMENTS = {"W8A8_MXFP8": "e4m3", "W4A8_MXFP": "e2m1", "W4A4_MXFP4": "e2m1"}


class Twin:
    """One case's layer on the CPU.

    Args:
        case: of the layer.
        product: whose rules hold.
        group: gloo, of the ranks.
        padded: width of an expert as the operator gets it.
    """

    def __init__(self, case: Case, product: str, group: Any, padded: int) -> None:
        self.case, self.product, self.group = case, product, group
        mine = EXPERTS // group.size()
        own = case.homes[group.rank() * mine : (group.rank() + 1) * mine]
        self.routed = _operands(case, [projections(case, *home) for home in own], padded)
        self.shared: LayerOperands | None = None
        if case.fused:
            self.shared = _operands(case, _cut(projections(case, *case.homes[-1]), case.shared), padded)

        sizes, most = self.routed.buffer_arguments(), -(-LIMIT // group.size())
        if case.use_case == "a8w4-int":
            # 9.1.0 on A3 counts packed rows, two for each token (docs/limits.md, max_recv_token_num).
            sizes["max_recv_token_num"] = 2 * most * group.size() * min(TOPK, mine)
        with settings(profile=product, backend="cpu"):
            # One for all steps: a 950 has no more on a communicator.
            self.buffer = get_symm_buffer_for_mega_moe(group, EXPERTS, most, TOPK, **sizes)

    def rows(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, active: Tensor) -> Tensor:
        """y [T, H] of this rank; rows that are not active come out as zero."""
        on_950 = self.product.startswith("950")
        ids = topk_ids.to(torch.int32).masked_fill(~active[:, None], -1) if on_950 else topk_ids.to(torch.int32).clone()
        weights = topk_weights.float() * (self.case.scaling if self.case.fused else 1.0)
        more = self.shared.shared_arguments() if self.shared is not None else {}
        if not on_950:
            more["x_active_mask"] = active.to(torch.int8)
        with settings(profile=self.product, backend="cpu"):
            y, _ = mega_moe(x, ids, weights, sym_buffer=self.buffer, **self.routed.arguments(), **more)
        return y[:, :HIDDEN].masked_fill(~active[:, None], 0)


def _operands(case: Case, mlps: list[dict[str, Projection]], padded: int) -> LayerOperands:
    experts = _experts(case, mlps)
    sizes = {"hidden": HIDDEN, "intermediate_hidden": padded}
    if isinstance(experts, DenseExperts):
        return transform_weights_for_mega_moe(experts.w13, experts.w2, case.use_case, **sizes)
    return convert(experts, UseCase(case.use_case), **sizes)


def _experts(case: Case, mlps: list[dict[str, Projection]]) -> Experts:
    w13 = torch.stack([torch.cat([mlp["gate"].codes, mlp["up"].codes]) for mlp in mlps])
    w2 = torch.stack([mlp["down"].codes for mlp in mlps])
    if case.weights == "BF16":
        return DenseExperts(w13, w2)
    s13 = torch.stack([torch.cat([_scale(mlp["gate"]), _scale(mlp["up"])]) for mlp in mlps])
    s2 = torch.stack([_scale(mlp["down"]) for mlp in mlps])
    if case.weights in ELEMENTS:
        return MxExperts(w13, s13, w2, s2, ELEMENTS[case.weights])
    return IntExperts(w13, s13, w2, s2, bits=4 if case.weights == "W4A8_DYNAMIC" else 8)


def _scale(each: Projection) -> Tensor:
    assert each.scale is not None
    return each.scale


def _cut(mlp: dict[str, Projection], pieces: int) -> list[dict[str, Projection]]:
    """A wide MLP as narrow ones whose outputs add up to its own."""

    def part(name: str, piece: int) -> Projection:
        each, dim = mlp[name], 1 if name == "down" else 0
        codes = each.codes.chunk(pieces, dim)[piece].contiguous()
        scale = each.scale if each.scale is None or pieces == 1 else each.scale.chunk(pieces, dim)[piece].contiguous()
        return Projection({}, each.values, codes, scale)

    return [{name: part(name, piece) for name in mlp} for piece in range(pieces)]
