"""A layer of the method around an oracle's case: its plan, its state on a rank, and a step of it."""

from dataclasses import replace
from typing import Any

import torch
from ops.operands import Form, call_arguments
from oracle.case import Case
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.method.buffers import open_handle
from vllm_megamoe.method.layer_state import LayerState
from vllm_megamoe.method.load_weights import LayerOperands
from vllm_megamoe.method.seat import Seat
from vllm_megamoe.plan.capacity import Capacity
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer

ALONE = Seat(group=None, rank=0, size=1, all_gather=lambda rows: rows)
VLLM_NAMES = {"swiglu": "silu", "swiglustep": "swiglustep", "swigluoai": "swigluoai", "situglu": "situ"}


def facts_of(case: Case, **changes: Any) -> MoeFacts:
    """The layer's facts as a producer would find them."""
    act = case.act
    experts, width = case.experts.w13.shape[0], case.experts.w13.shape[1] // 2
    shared = case.ranks[0].shared
    activation = ActivationFacts(VLLM_NAMES[act.name], act.clamp, beta=1.0)
    return MoeFacts(
        "layer",
        experts,
        case.ranks[0].topk_ids.shape[1],
        case.ranks[0].x.shape[1],
        width,
        activation=activation,
        shared=SharedFacts(len(shared.w13) * width, case.ranks[0].x.shape[1], activation) if shared else None,
        **changes,
    )


def plan_of(
    case: Case, *, rows: int = 64, chunk: int = 0, pad: str = "own", facts: MoeFacts | None = None, **options: Any
) -> LayerPlan:
    """The plan of profile none, with another chunk or padding rule where a test wants the ones of a product."""
    ranks = len(case.ranks)
    engine = EngineFacts("bfloat16", data_parallel=ranks, expert_parallel=ranks > 1, max_num_batched_tokens=rows)
    asked = {"use_case": case.use_case, "requant": "allow", "profile": "none", **options}
    plan = plan_layer(engine, facts or facts_of(case), Options(**asked))
    capacity = replace(plan.capacity, pad=pad)
    if chunk:
        capacity = replace(
            capacity, chunk=chunk, calls=-(-rows // chunk), receive_bound=plan.buffer.receive_bound(chunk)
        )
    return replace(plan, capacity=capacity, buffer=replace(plan.buffer, num_max_tokens_per_rank=capacity.chunk))


def seat_of(largest: int | None = None) -> Seat:
    """This process's seat in the default group; `largest` is what vLLM would have exchanged for the step."""
    if not dist.is_initialized():
        return ALONE

    def gather(rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    group = dist.group.WORLD
    most = {} if largest is None else {"largest_rows": lambda own: largest}
    return Seat(group, dist.get_rank(), dist.get_world_size(), gather, **most)  # type: ignore[arg-type]


def operands_of(arguments: dict[str, Any], prefix: str = "") -> LayerOperands:
    """Operands that the oracle packed, without a conversion of ours."""
    names = ("l1_weights", "l2_weights", "l1_weights_sf", "l2_weights_sf", "l1_bias", "l2_bias")
    return LayerOperands(*(arguments.get(f"{prefix}{name}") for name in names))  # type: ignore[arg-type]


def state_of(case: Case, r: int, plan: LayerPlan, largest: int | None = None) -> LayerState:
    """The layer on rank r, ready to run."""
    arguments = call_arguments(case, r, Form())
    shared = operands_of(arguments, "shared_") if plan.shared.mode == "fused" else None
    seat = seat_of(largest)
    buffer = open_handle("layer", plan, seat).buffer
    return LayerState("layer", plan, seat, operands_of(arguments), buffer, shared)


def rows_of(case: Case, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, topk_ids and topk_weights of rank r."""
    arguments = call_arguments(case, r, Form())
    return arguments["x"], arguments["topk_ids"], arguments["topk_weights"]


def capacity(**changes: Any) -> Capacity:
    """A capacity for tests that need nothing else of a plan."""
    whole = Capacity(rows=64, chunk=16, calls=4, pad="own", max_recv_token_num=0, receive_bound=64, workspace_bytes=0)
    return replace(whole, **changes)
