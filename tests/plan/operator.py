"""What the operator itself says of a plan: buffer, operands and one call on the twin, as one of two ranks."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.experts.canonical import DenseExperts
from vllm_megamoe.experts.convert import LayerOperands, convert
from vllm_megamoe.layer.state import constant_arguments
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.use_cases import UseCase


@cache
def _operands(
    use_case: UseCase, count: int, sizes: tuple[int, int], padded: tuple[int, int], stacked: bool, dtype: torch.dtype
) -> LayerOperands:
    g = torch.Generator().manual_seed(1)
    hidden, width = sizes
    w13 = (torch.randn(count, 2 * width, hidden, generator=g) / hidden**0.5).to(dtype)
    w2 = (torch.randn(count, hidden, width, generator=g) / width**0.5).to(dtype)
    return convert(DenseExperts(w13, w2), use_case, hidden=padded[0], intermediate_hidden=padded[1], stacked=stacked)


def _experts(plan: LayerPlan, use_case: UseCase, count: int, dtype: str) -> LayerOperands:
    facts, padding = plan.facts, plan.padding
    sizes = facts.hidden, facts.intermediate_hidden
    padded = padding.hidden, padding.intermediate_hidden
    return _operands(use_case, count, sizes, padded, plan.stacked, getattr(torch, dtype))


def _tokens(plan: LayerPlan, rank: int, dtype: str) -> dict[str, Tensor | None]:
    """Rows of this rank as the plan pads them: fewer on rank 1 where the product allows it, else masked or full."""
    capacity, facts = plan.capacity, plan.facts
    rows = capacity.chunk if capacity.pad != "own" else max(1, capacity.chunk - rank)
    g = torch.Generator().manual_seed(2 + rank)
    ids = torch.stack([torch.randperm(facts.num_experts, generator=g)[: facts.topk] for _ in range(rows)])
    mask = torch.ones(rows, dtype=torch.int8) if capacity.pad == "dp_max" else None
    if mask is not None and rows > 1:
        mask[rows - rank :] = 0
    return {
        "x": torch.randn(rows, plan.padding.hidden, generator=g).to(getattr(torch, dtype)),
        "topk_ids": ids.int(),
        "topk_weights": torch.rand(rows, facts.topk, generator=g) + 0.1,
        "x_active_mask": mask,
    }


def run(plan: LayerPlan, rank: int, dtype: str) -> str:
    """What the operator rejects, empty where it takes the plan; all rows that took part are finite."""
    group = dist.new_group([0, 1])
    routed, own = _experts(plan, plan.use_case, plan.experts_per_rank, dtype), plan.shared.use_case
    shared = None if own is None else _experts(plan, own, plan.shared.pieces, dtype)
    arguments: dict[str, Any] = constant_arguments(plan, routed, shared)
    buffer = plan.buffer
    given = {
        "num_experts": buffer.num_experts,
        "num_max_tokens_per_rank": buffer.num_max_tokens_per_rank,
        "num_topk": buffer.num_topk,
        "max_recv_token_num": buffer.max_recv_token_num,
        "combine_quant_mode": buffer.combine_quant_mode,
        "topk_weights_type": buffer.topk_weights_type,
        "combine_comm_mode": buffer.combine_comm_mode,
        **routed.buffer_arguments(),
    }
    tokens = _tokens(plan, rank, dtype)
    try:
        with settings(profile=plan.profile.name, topology=plan.profile.topology, timeout_s=60):
            made = get_symm_buffer_for_mega_moe(group, **given)
            y, counts = mega_moe(**tokens, **arguments, sym_buffer=made)
            made.destroy()
    except Exception as error:  # told to the test, which shows it beside the plan
        return f"{type(error).__name__}: {error}"
    finally:
        # A product has one buffer for each communicator, so every plan gets its own; each holds threads and sockets.
        dist.destroy_process_group(group)
    mask = tokens["x_active_mask"]
    rows = y if mask is None else y[mask.bool()]
    if not rows.isfinite().all():
        return "rows of y are not finite"
    return "" if counts.shape == (plan.experts_per_rank,) else f"counts of shape {list(counts.shape)}"


def run_all(rank: int, plans: list[tuple[LayerPlan, str]]) -> list[str]:
    """One rank's part of all cases."""
    torch.set_num_threads(1)
    return [run(plan, rank, dtype) for plan, dtype in plans]
