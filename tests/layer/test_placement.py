"""Experts on other ranks than in order, and on several: the same rows bit by bit, loads as predicted."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from layer.layers import canonical, facts_of, plan_of, rows_of, seat_of, state_of
from oracle.case import Case
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.errors import ConfigError, OperatorError
from vllm_megamoe.layer.buffers import open_handle
from vllm_megamoe.layer.moving import move_experts
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.layer.weights import RoutedWeights
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.testing.ranks import World

SHAPE = Shape(tokens=(9, 4), experts=8, hidden=256, intermediate=128, topk=3)
SHUFFLED = (7, 2, 5, 0, 1, 6, 3, 4)
COPIED = (7, 2, 5, 0, 1, 6, 1, 0, 3, 2, 4, 5)
"""Twelve slots: experts 0, 1, 2 and 5 stand on both ranks."""
OTHER = (0, 1, 2, 3, 6, 7, 0, 1, 4, 5, 6, 7)


def put(plan: LayerPlan, case: Case, slots: Sequence[int], r: int) -> RoutedWeights:
    weights = RoutedWeights(plan, torch.bfloat16, torch.device("cpu"))
    experts = canonical(case.experts)
    each = plan.experts_per_rank
    for slot, expert in enumerate(slots[r * each : (r + 1) * each]):
        weights.put(slot, experts.one(expert))
    return weights


def placed_state(case: Case, r: int, slots: tuple[int, ...], **options: str) -> LayerState:
    plan = plan_of(case, facts=facts_of(case, slots=slots), **options)
    seat = seat_of(fresh=True)
    operands = put(plan, case, slots or tuple(range(8)), r).operands()
    return LayerState("layer", plan, seat, operands, open_handle("layer", plan, seat))


def bits(rows: Tensor) -> bytes:
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


def by_expert(state: LayerState) -> list[int]:
    """Rows of each expert on this rank, from the router's ids to its counters."""
    found = [0] * 8
    slots = state.plan.slots_of(state.seat.rank) or list(range(8))[4 * state.seat.rank :][:4]
    for expert, rows in zip(slots, state.counts.tolist(), strict=True):
        found[expert] += rows
    return found


def compare(case: Case, r: int, slots: tuple[int, ...]) -> tuple[bool, list[int], list[int]]:
    """Whether a placement gives the plain layer's bits, and rows of each expert on this rank for both."""
    plain, other = placed_state(case, r, ()), placed_state(case, r, slots)
    x, ids, weights = rows_of(case, r)
    same = bits(plain.run(x, ids, weights)) == bits(other.run(x, ids, weights))
    return same, by_expert(plain), by_expert(other)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a4w4-fp"])
@pytest.mark.parametrize("slots", [SHUFFLED, COPIED], ids=["shuffled", "copied"])
def test_any_placement_gives_the_plain_ones_rows(use_case: str, slots: tuple[int, ...], two_ranks: World) -> None:
    case = make_case(use_case, SHAPE)
    found = two_ranks.run(compare, [(case, r, slots) for r in range(2)])
    assert [same for same, _, _ in found] == [True, True]
    chosen = np.bincount(np.concatenate([rank.topk_ids.ravel() for rank in case.ranks]), minlength=8)
    for which in (1, 2):
        assert np.add(found[0][which], found[1][which]).tolist() == chosen.tolist()


def move(case: Case, r: int) -> tuple[list[bool], bool, list[int], str]:
    """From twelve slots to twelve others and back: bits of the rows, addresses of the operands, slots that changed."""
    plain, state = placed_state(case, r, ()), placed_state(case, r, COPIED)
    x, ids, weights = rows_of(case, r)
    expected = bits(plain.run(x, ids, weights))
    state.run(x, ids, weights)
    homes = [tensor.data_ptr() for tensor in state.operands.l1]
    same, moved = [], []
    for slots in (OTHER, OTHER, COPIED):
        moved.append(move_experts(state, slots))
        assert int(state.counts.sum()) == 0
        same.append(bits(state.run(x, ids, weights)) == expected)
        fresh = put(state.plan, case, slots, r).operands()
        same.append(all(inner(a).equal(inner(b)) for a, b in zip(fresh.l2, state.operands.l2, strict=True)))
    try:
        move_experts(state, SHUFFLED)
        said = ""
    except ConfigError as error:
        said = str(error)
    return same, homes == [tensor.data_ptr() for tensor in state.operands.l1], moved, said


@pytest.mark.parametrize("use_case", ["a16w16", "a8w4-int", "a4w4-fp"])
def test_experts_move_between_ranks_as_bytes(use_case: str, two_ranks: World) -> None:
    case = make_case(use_case, SHAPE)
    expected = [
        sum(a != b for a, b in zip(COPIED[6 * r : 6 * r + 6], OTHER[6 * r : 6 * r + 6], strict=True)) for r in range(2)
    ]
    for r, (same, stayed, moved, said) in enumerate(two_ranks.run(move, [(case, r) for r in range(2)])):
        assert same == [True] * 6
        assert stayed
        assert moved == [expected[r], 0, expected[r]]
        assert said == "layer: 8 slots; expected 12, as many as at the start. Start the server with them."


def test_a_captured_graph_keeps_its_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("a8w8-int", Shape(tokens=(7,)))
    state = state_of(case, 0, plan_of(case))
    state.captured_at = 1.0
    with pytest.raises(
        OperatorError, match=r"layer: a captured graph runs this layer and its routes change their size"
    ):
        move_experts(state, (1, 0, 2, 3))


@pytest.mark.parametrize("slots", [(), (3, 1, 0, 2)], ids=["plain", "placed"])
def test_a_router_that_repeats_experts_is_exact(slots: tuple[int, ...]) -> None:
    """What LongCat's router hands over: expert 0 with weight 0 in place of every zero expert (C1)."""
    case = make_case("a8w8-int", Shape(tokens=(7,)))
    plan = plan_of(case, facts=facts_of(case, slots=slots))
    weights = put_of(plan, case, slots)
    state = LayerState(
        "layer", plan, seat_of(), weights.operands(), open_handle("layer", plan, seat_of()), repeats=True
    )
    x, ids, router = rows_of(case, 0)
    alone = state.run(x, ids, torch.cat([router[:, :1], torch.zeros_like(router[:, 1:])], 1))
    repeated = torch.cat([ids[:, :1], torch.zeros_like(ids[:, 1:])], 1)
    zero = torch.cat([router[:, :1], torch.zeros_like(router[:, 1:])], 1)
    assert bits(state.run(x, repeated, zero)) == bits(alone)
    twice = torch.stack([ids[:, 0], ids[:, 0], ids[:, 1]], 1)
    halves = torch.stack([router[:, 0] / 2, router[:, 0] / 2, router[:, 1]], 1)
    once = torch.cat([router[:, :2], torch.zeros_like(router[:, 2:])], 1)
    assert bits(state.run(x, twice, halves)) == bits(state.run(x, ids, once))
    untouched = replace(state, repeats=False)
    with pytest.raises(OperatorError):
        untouched.run(x, repeated, zero)


def put_of(plan: LayerPlan, case: Case, slots: tuple[int, ...]) -> RoutedWeights:
    return put(plan, case, slots or tuple(range(plan.facts.num_experts)), 0)
