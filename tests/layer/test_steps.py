"""Whole steps on two ranks against the operator's oracle: cut, padded, with every option of the plan, shared experts.

The oracle knows nothing of calls: it computes each token from the operator's formulas, so a step must give its result
however it was cut and padded.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from layer.layers import plan_of, rows_of, state_of
from ops.calls import Got, as_got
from ops.compare import compare_rank
from oracle.case import Case
from oracle.make import Shape, make_case
from oracle.operator import expected

from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.testing.ranks import World

UNEVEN = Shape(tokens=(9, 4))


@dataclass(frozen=True)
class Step:
    """What one rank saw."""

    got: Got
    calls: int
    dropped: int | None
    buffer: dict[str, Any]


def run_step(case: Case, r: int, plan: LayerPlan, largest: int | None, idle: bool = False) -> Step:
    """One step on rank r; an idle rank brings no row."""
    import torch

    state = state_of(case, r, plan, largest)
    x, ids, weights = rows_of(case, r)
    if idle:
        x, ids, weights = x[:0], ids[:0], weights[:0]
    before = [t.clone() for t in (x, ids, weights)]
    y = state.run(x, ids, weights)
    assert all(a.equal(b) for a, b in zip(before, (x, ids, weights), strict=True)), "the model's tensors were changed"
    counts = state.counts.to(torch.int32)
    dropped = None if state.load.dropped is None else int(state.load.dropped)
    names = ("max_recv_token_num", "combine_quant_mode", "topk_weights_type", "combine_comm_mode")
    return Step(as_got(y, counts, ids), state.calls, dropped, {name: getattr(state.buffer, name) for name in names})


def run_both(world: World, case: Case, plan: LayerPlan) -> list[Step]:
    """Both ranks; vLLM would have told them the larger number of rows."""
    largest = max(len(rank.x) for rank in case.ranks)
    steps: list[Step] = world.run(run_step, [(case, r, plan, largest) for r in range(2)])
    return steps


def check(case: Case, steps: list[Step], calls: int) -> None:
    for r, want in enumerate(expected(case)):
        compare_rank(r, steps[r].got, want)
    assert [step.calls for step in steps] == [calls, calls]


@pytest.mark.parametrize("pad", ["own", "dp_max", "num_max"])
@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_uneven_rows_in_three_calls(use_case: str, pad: str, two_ranks: World) -> None:
    case = make_case(use_case, UNEVEN)
    check(case, run_both(two_ranks, case, plan_of(case, chunk=4, pad=pad)), calls=3)


@pytest.mark.parametrize("pad", ["own", "dp_max", "num_max"])
def test_b17_an_idle_rank_takes_part(pad: str, two_ranks: World) -> None:
    case = make_case("a8w8-int", Shape(tokens=(9, 1)))
    plan = plan_of(case, chunk=4, pad=pad)
    busy, idle = two_ranks.run(run_step, [(case, 0, plan, 9), (case, 1, plan, 9, True)])
    assert (busy.calls, idle.calls, idle.got.y.shape) == (3, 3, (0, 96))
    want = expected(case)[0].y
    assert np.array_equal(busy.got.y, want.lo)
    routed = np.bincount(case.ranks[0].topk_ids.ravel(), minlength=4)
    assert [*busy.got.expert_token_nums, *idle.got.expert_token_nums] == routed.tolist()


@pytest.mark.parametrize("pad", ["own", "dp_max"])
def test_replicated_rows_are_shared_out_and_come_back_whole(pad: str, two_ranks: World) -> None:
    """Five rows that both tensor-parallel ranks hold: three and two, in two calls of up to two."""
    both = make_case("a8w8-int", Shape(tokens=(5,)))
    case = replace(both, ranks=both.ranks * 2)
    plan = replace(plan_of(case, chunk=2, pad=pad), tokens="replicated")
    steps = two_ranks.run(run_step, [(case, r, plan, None) for r in range(2)])
    want = expected(both)[0]
    assert all(np.array_equal(step.got.y, want.y.lo) for step in steps)
    assert [n for step in steps for n in step.got.expert_token_nums] == want.expert_token_nums.tolist()
    assert [step.calls for step in steps] == [2, 2]


OPTIONS = [
    {"combine_quant": "e5m2"},
    {"combine_quant": "e4m3"},
    {"topk_weights_type": 1},
    {"combine_comm_mode": 1},
    {"topk_weights_type": 1, "combine_quant": "e4m3"},
    {"topk_weights_type": 1, "combine_comm_mode": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_reach_buffer_and_call(options: dict[str, Any], two_ranks: World) -> None:
    modes = {
        "combine_quant_mode": {None: 0, "e5m2": 3, "e4m3": 4}[options.get("combine_quant")],
        "topk_weights_type": options.get("topk_weights_type", 0),
        "combine_comm_mode": options.get("combine_comm_mode", 0),
    }
    case = replace(make_case("a8w8-fp", UNEVEN), **modes)
    steps = run_both(two_ranks, case, plan_of(case, chunk=4, **options))
    assert steps[0].buffer == steps[1].buffer == {"max_recv_token_num": 0, **modes}
    check(case, steps, calls=3)


def test_b03_dropped_rows_are_counted(two_ranks: World) -> None:
    """Ten rows of capacity a rank; the kernel drops the rest in silence and counts as if it had not."""
    case = replace(make_case("a8w8-int", Shape(tokens=(7, 6))), max_recv_token_num=10)
    plan = plan_of(case, max_recv_token_num=10, allow_token_drop=True)
    steps = run_both(two_ranks, case, plan)
    check(case, steps, calls=1)
    received = [int(step.got.expert_token_nums.sum()) for step in steps]
    assert sum(received) == (7 + 6) * 3
    assert max(received) > 10
    assert [step.dropped for step in steps] == [max(0, n - 10) for n in received]


def test_a_full_receive_capacity_counts_no_drops(two_ranks: World) -> None:
    case = make_case("a8w8-int", Shape(tokens=(7, 6)))
    bound = 64 * 2 * 2  # rows, ranks, min(topk 3, 2 experts a rank)
    steps = run_both(two_ranks, case, plan_of(case, max_recv_token_num=bound))
    check(case, steps, calls=1)
    assert [(step.dropped, step.buffer["max_recv_token_num"]) for step in steps] == [(None, bound)] * 2


def test_more_rows_than_planned_are_rejected_on_all_ranks(two_ranks: World) -> None:
    """B01: also on the rank that brings few, which would wait for the others otherwise."""
    case = make_case("a8w8-int", UNEVEN)
    plan = plan_of(case, rows=8)
    failures = two_ranks.outcomes(run_step, [(case, r, plan, 9) for r in range(2)])
    assert [(f.kind, "9 rows in one step, but the buffer was planned for 8" in f.message) for f in failures] == [
        ("OperatorError", True)
    ] * 2


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
@pytest.mark.parametrize("shared", [1, 3])
def test_fused_shared_experts_are_added_once(use_case: str, shared: int, two_ranks: World) -> None:
    """B50. Cut into calls, on two ranks that bring other rows, the shared experts see each row once."""
    case = make_case(use_case, UNEVEN, shared=shared)
    plan = plan_of(case, chunk=4)
    assert (plan.shared.mode, plan.shared.pieces) == ("fused", shared)
    check(case, run_both(two_ranks, case, plan), calls=3)


def test_b45_a_folded_scaling_factor_reaches_the_routed_sum_only(two_ranks: World) -> None:
    case = make_case("a8w8-fp", UNEVEN, shared=1)
    plan = replace(plan_of(case, chunk=4), fold_scaling=2.5)
    ranks = tuple(replace(rank, topk_weights=rank.topk_weights * np.float32(2.5)) for rank in case.ranks)
    want = expected(replace(case, ranks=ranks))
    for r, step in enumerate(run_both(two_ranks, case, plan)):
        compare_rank(r, step.got, want[r])


@pytest.mark.parametrize("pad", ["own", "dp_max", "num_max"])
def test_b17_b45_b50_an_idle_rank_shares_experts_and_a_folded_factor(pad: str, two_ranks: World) -> None:
    """Rows that only fill up a call reach neither the routed nor the shared experts' results of anybody."""
    case = make_case("a8w8-fp", Shape(tokens=(9, 1)), shared=2)
    plan = replace(plan_of(case, chunk=4, pad=pad), fold_scaling=2.5)
    busy, idle = two_ranks.run(run_step, [(case, 0, plan, 9), (case, 1, plan, 9, True)])
    assert (busy.calls, idle.calls, idle.got.y.shape) == (3, 3, (0, 96))
    ranks = tuple(replace(rank, topk_weights=rank.topk_weights * np.float32(2.5)) for rank in case.ranks)
    want = expected(replace(case, ranks=ranks))[0]
    compare_rank(0, replace(busy.got, expert_token_nums=want.expert_token_nums), want)
    routed = np.bincount(case.ranks[0].topk_ids.ravel(), minlength=4)
    assert [*busy.got.expert_token_nums, *idle.got.expert_token_nums] == routed.tolist()
