"""Layers through our method with one thing of ours made wrong on purpose: what reaches the operator, what comes out."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from contract.scenes.layer import build
from contract.support import engine
from contract.support.boundary import Boundary
from contract.support.cases import CASES, HIDDEN
from contract.support.rank import Rank
from contract.support.values import rows_for

TOKENS = 5
ASCEND = "vllm_megamoe.lanes.ascend"


def run(rank: Rank) -> dict[str, Any]:
    """Of each mutation, and of none: the calls and the rows, or what was said instead."""
    boundary = Boundary()
    return {name: _answer(name, boundary, rank) for name in ("none", *MUTATIONS)}


def _answer(name: str, boundary: Boundary, rank: Rank) -> dict[str, Any]:
    case_name, change = MUTATIONS.get(name, ("bf16", _nothing))
    cases = {case.name: case for case in CASES[os.environ["VLLM_MEGAMOE_SIMULATED_NPU"]]}
    start, answer = len(boundary.events), {}
    try:
        with change():
            config, block = build(replace(cases[case_name], name=f"mutation-{name}"), rank)
            answer["mc2 group"] = _mc2_group()
            answer["rows"] = engine.forward(config, block, rows_for("bf16", TOKENS, HIDDEN))
    except Exception as error:  # that something is said is what a mutation is about
        answer["said"] = f"{type(error).__name__}: {error}"
    return answer | {"events": boundary.since(start)}


def _mc2_group() -> str:
    from vllm_ascend.distributed.parallel_state import get_mc2_group

    return str(get_mc2_group().device_group.group_name)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _selector_left_alone() -> Iterator[None]:
    """vllm-ascend chooses by itself; what a case before has put into its table is taken out again."""
    from vllm_ascend.ascend_forward_context import _MOE_COMM_SELECTORS

    for policy, select in list(_MOE_COMM_SELECTORS.items()):
        _MOE_COMM_SELECTORS[policy] = getattr(select, "original", select)
    with patch(f"{ASCEND}.moe_rows.always_as_mc2"):
        yield


def _mask_dropped() -> Any:
    from vllm_megamoe.layer import rows, state

    def bare(*given: Any, **named: Any) -> Any:
        return rows.pad_rows(*given, **named | {"masked": False, "active": None})

    return patch.object(state, "pad_rows", bare)


def _split_again() -> Any:
    """The plan takes rows for replicated, and each rank a share of what is a share already."""
    from vllm_megamoe.layer.state import LayerState

    whole = LayerState.run

    def share(state: Any, x: Any, topk_ids: Any, topk_weights: Any, active: Any = None) -> Any:
        half = slice(0, -(-len(x) // 2)) if state.seat.rank == 0 else slice(-(-len(x) // 2), len(x))
        y = torch.zeros_like(x)
        kept = None if active is None else active[half]
        size = -(-len(x) // 2)
        with patch.object(state.seat.__class__, "largest_rows", staticmethod(lambda rows: size), create=True):
            y[half] = whole(state, x[half], topk_ids[half], topk_weights[half], kept)
        return y

    return patch.object(LayerState, "run", share)


def _expert_group() -> Any:
    """vLLM's own EP group, which HCCL_BUFFSIZE does not reach."""
    from vllm_megamoe.lanes import ascend

    seat = ascend.read_seat

    def other(*given: Any) -> Any:
        from vllm.distributed import get_ep_group

        return replace(seat(*given), group=get_ep_group().device_group)

    return patch.object(ascend, "read_seat", other)


def _halves_swapped() -> Any:
    from vllm_megamoe.experts import slots

    right = slots.to_operands

    def swapped(experts: Any, *others: Any) -> Any:
        return right(replace(experts, w13=experts.w13.roll(experts.w13.shape[1] // 2, dims=1)), *others)

    return patch.object(slots, "to_operands", swapped)


def _reduced_twice() -> Any:
    from vllm_megamoe.lanes.ascend.method import AscendMegaMoeMethod

    right = AscendMegaMoeMethod.apply

    def again(*given: Any, **named: Any) -> Any:
        from vllm.distributed import tensor_model_parallel_all_reduce

        result = right(*given, **named)
        return replace(result, routed_out=tensor_model_parallel_all_reduce(result.routed_out))

    return patch.object(AscendMegaMoeMethod, "apply", again)


def _bf16_router() -> Any:
    from vllm_megamoe.layer.state import LayerState

    right = LayerState._call

    def rounded(state: Any, x: Any, ids: Any, weights: Any, *others: Any) -> Any:
        return right(state, x, ids, weights.bfloat16(), *others)

    return patch.object(LayerState, "_call", rounded)


def _type_of_int4() -> Any:
    from vllm_megamoe.layer import state

    right = state.constant_arguments

    def wrong(*given: Any) -> dict[str, Any]:
        return right(*given) | {"weight1_type": 285, "weight2_type": 285}

    return patch.object(state, "constant_arguments", wrong)


def _not_cast() -> Any:
    from vllm_megamoe.layout import cast

    return patch.object(cast, "npu_format_cast", lambda tensor, fmt: tensor)


def _cast_does_nothing() -> Any:
    """As builds of torch_npu do whose internal formats are off."""
    import torch_npu

    return patch.object(torch_npu, "npu_format_cast", lambda tensor, acl_format, **types: tensor)


def _small_window_on_one_rank() -> Any:
    from vllm_megamoe.lanes.ascend import method

    right = method.window_problems

    def small(plan: Any, given: int) -> list[str]:
        return right(plan, given if torch.distributed.get_rank() else 1 << 20)

    return patch.object(method, "window_problems", small)


MUTATIONS: dict[str, tuple[str, Callable[[], Any]]] = {
    "selector not replaced": ("bf16", _selector_left_alone),
    "mask dropped": ("bf16", _mask_dropped),
    "rows split twice": ("bf16", _split_again),
    "EP group in place of ours": ("bf16", _expert_group),
    "w1 halves swapped": ("bf16", _halves_swapped),
    "reduction done twice": ("bf16", _reduced_twice),
    "bf16 router weights": ("bf16", _bf16_router),
    "wrong type code": ("w8a8", _type_of_int4),
    "weights not cast": ("w8a8", _not_cast),
    "cast without effect": ("w8a8", _cast_does_nothing),
    "small window on one rank": ("bf16", _small_window_on_one_rank),
}
"""Name -> case, and what makes it wrong while the block is open."""
