"""A layer of the method around an oracle's case: its plan, its state on a rank, and a step of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from ops.operands import Form, call_arguments
from oracle import packing
from oracle.case import Case, Dense, Integer, Mx
from oracle.case import Experts as OracleExperts
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.convert import convert
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.layer.buffers import open_handle
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.layer.weights import RoutedWeights, SharedWeights
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


def convert_routed(w13: Tensor, w2: Tensor, plan: LayerPlan) -> LayerOperands:
    """w13 [E, 2I, H] and w2 [E, H, I] through a layer's weights, one expert after the other."""
    weights = RoutedWeights(plan, w13.dtype, w13.device)
    for e in range(len(w13)):
        weights.put(e, DenseExperts(w13[e : e + 1], w2[e : e + 1]))
    return weights.operands()


def convert_shared(experts: Experts, plan: LayerPlan) -> LayerOperands:
    """A shared MLP, cut to the routed width, through a layer's weights."""
    weights = SharedWeights(plan, experts.w13.dtype, experts.w13.device)
    weights.put(experts)
    return weights.operands()


def seat_of(largest: int | None = None, fresh: bool = False) -> Seat:
    """This process's seat in the default group, or in a fresh one over the same ranks.

    `largest` is what vLLM would have exchanged for the step.
    """
    if not dist.is_initialized():
        return ALONE

    def gather(rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    group = dist.new_group(list(range(dist.get_world_size()))) if fresh else dist.group.WORLD
    most = {} if largest is None else {"largest_rows": lambda own: largest}
    return Seat(group, dist.get_rank(), dist.get_world_size(), gather, **most)  # type: ignore[arg-type]


def operands_of(arguments: dict[str, Any], plan: LayerPlan, prefix: str = "") -> LayerOperands:
    """Operands that the oracle packed, without a conversion of ours."""
    names = ("l1_weights", "l2_weights", "l1_weights_sf", "l2_weights_sf", "l1_bias", "l2_bias")
    tensors: list[Any] = [arguments.get(f"{prefix}{name}") for name in names]
    return LayerOperands(
        *tensors,
        use_case=plan.use_case,
        hidden=plan.padding.hidden,
        intermediate_hidden=plan.padding.intermediate_hidden,
        dispatch_quant_mode=plan.buffer.dispatch_quant_mode,
        dispatch_quant_out_dtype=None,
        weight_type=arguments.get(f"{prefix}weight1_type"),
    )


def canonical(e: OracleExperts) -> Experts:
    """An oracle's experts as the package holds them before it lays them out."""
    if isinstance(e, Dense):
        return DenseExperts(*(torch.from_numpy(w).to(torch.bfloat16) for w in (e.w13, e.w2)))
    if isinstance(e, Integer):
        return IntExperts(*(torch.from_numpy(t) for t in (e.w13, e.s13, e.w2, e.s2)), bits=8 if e.bits == 8 else 4)
    assert isinstance(e, Mx)
    w13, w2 = (packing.pack_nibbles(w) if e.elem == "e2m1" else w for w in (e.w13, e.w2))
    parts = (torch.from_numpy(np.ascontiguousarray(t)) for t in (w13, e.s13, w2, e.s2))
    return MxExperts(*parts, elem=e.elem)  # type: ignore[arg-type]


def padded_operands(experts: OracleExperts, r: int, count: int, plan: LayerPlan) -> LayerOperands:
    """Experts [r * count, (r + 1) * count) padded and laid out as the plan says."""
    cut = slice(r * count, (r + 1) * count)
    own = {n: getattr(experts, n) for n in experts.__slots__}
    own = {n: v[cut] if isinstance(v, np.ndarray) else v for n, v in own.items()}
    sizes = {"hidden": plan.padding.hidden, "intermediate_hidden": plan.padding.intermediate_hidden}
    return convert(canonical(type(experts)(**own)), plan.use_case, stacked=plan.stacked, **sizes)


def padded_state(case: Case, r: int, plan: LayerPlan, largest: int | None = None) -> LayerState:
    """The layer on rank r with its experts padded to the plan's sizes, fused shared ones too."""
    shared = case.ranks[r].shared if plan.shared.mode == "fused" else None
    seat = seat_of(largest, fresh=True)
    return LayerState(
        "layer",
        plan,
        seat,
        padded_operands(case.experts, r, case.experts_per_rank, plan),
        open_handle("layer", plan, seat),
        None if shared is None else padded_operands(shared, 0, len(shared.w13), plan),
    )


def state_of(case: Case, r: int, plan: LayerPlan, largest: int | None = None, seat: Seat | None = None) -> LayerState:
    """The layer on rank r, ready to run; on this process's seat in the default group where none is given."""
    arguments = call_arguments(case, r, Form())
    shared = operands_of(arguments, plan, "shared_") if plan.shared.mode == "fused" else None
    seat = seat or seat_of(largest)
    handle = open_handle("layer", plan, seat)
    return LayerState("layer", plan, seat, operands_of(arguments, plan), handle, shared)


def rows_of(case: Case, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, topk_ids and topk_weights of rank r."""
    arguments = call_arguments(case, r, Form())
    return arguments["x"], arguments["topk_ids"], arguments["topk_weights"]


def capacity(**changes: Any) -> Capacity:
    """A capacity for tests that need nothing else of a plan."""
    whole = Capacity(rows=64, chunk=16, calls=4, pad="own", max_recv_token_num=0, receive_bound=64, workspace_bytes=0)
    return replace(whole, **changes)
