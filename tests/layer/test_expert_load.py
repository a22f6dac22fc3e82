"""Counters of a layer, by hand."""

from dataclasses import replace

import pytest
import torch
from layer.layers import ALONE, capacity, plan_of, rows_of, state_of
from oracle.make import Shape, make_case
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_megamoe.layer.expert_load import ExpertLoad, StepKind

CASE = make_case("a8w8-int", Shape(tokens=(7,)))


def load(room: int, experts: int = 3) -> ExpertLoad:
    return ExpertLoad.start(experts, capacity(max_recv_token_num=room, receive_bound=64), torch.device("cpu"))


def test_a_call_below_the_limit_makes_up_for_no_lost_row() -> None:
    """Calls of 12, 3 and 11 rows with room for 10: two and one are lost, and the seven free places help nobody."""
    found = load(10)
    for rows in ([7, 0, 5], [1, 2, 0], [0, 0, 11]):
        found.add(torch.tensor(rows, dtype=torch.int32))
    assert found.counts.tolist() == [8, 2, 16]
    assert found.counts.dtype == torch.int64
    assert found.dropped is not None
    assert found.largest is not None
    assert (int(found.dropped), int(found.largest)) == (3, 12)


def test_where_nothing_can_be_lost_nothing_is_counted() -> None:
    for room in (0, 64, 65):
        assert (load(room).dropped, load(room).largest) == (None, None)


def test_one_layer_counts_steps_for_those_that_run_with_it() -> None:
    first, second = load(0), load(0)
    second.pacer = first
    for calls in (1, 3, 1):
        first.add_step(calls)
        second.add_step(calls)
    assert (int(second.steps), int(second.calls)) == (int(first.steps), int(first.calls)) == (3, 5)
    assert int(second.by_calls.sum()) == 0


class Operations(TorchDispatchMode):
    """Counts what torch is told."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_call_costs_one_addition_and_a_step_one_more_for_all_layers() -> None:
    first, second = load(0), load(0)
    second.pacer = first
    nums = torch.tensor([1, 2, 3], dtype=torch.int32)
    with Operations() as seen:
        for each in (first, second):
            each.add(nums)
            each.add_step(1)
    assert seen.names == ["add_.Tensor"] * 3


@pytest.mark.parametrize(("kind", "steps", "rows"), [("served", 1, 21), ("warm_up", 0, 0), ("idle", 1, 0)])
def test_rows_of_nobody_do_not_count(kind: StepKind, steps: int, rows: int) -> None:
    """Seven tokens of three experts each; an idle rank's reach no expert, but it has made the step."""
    state = state_of(CASE, 0, plan_of(CASE), seat=replace(ALONE, kind_of_step=lambda: kind))
    y = state.run(*rows_of(CASE, 0))
    assert (state.steps, int(state.counts.sum())) == (steps, rows)
    assert bool(y.any()) is (kind != "idle")
