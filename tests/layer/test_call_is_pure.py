"""B62: the per-layer call reads nothing from the device on the host, imports nothing, makes no buffer, casts nothing.

A recording operator stands in the twin's place, because the twin itself may do all of that.
"""

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from layer.layers import plan_of, rows_of, state_of
from oracle.case import Case
from oracle.make import Shape, make_case
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_megamoe.layer import buffers, state
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.padding import Padding

HOST_READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "unique", "masked_select", "_to_copy")
"""Operators whose result the host must wait for, and the cast."""


class NoHostReads(TorchDispatchMode):
    """Fails at an operator that reads from the device or casts."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        if name in HOST_READS or name.startswith("_unique"):
            raise AssertionError(f"the call runs {func.name()}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails at an import statement of the package, also one of a module that is there already."""
    original = builtins.__import__

    def guarded(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        importer = (globals or {}).get("__name__", "")
        # C code (torch's indexing) passes the globals of the Python frame below it, and a list where statements do not.
        if importer.startswith("vllm_megamoe") and not isinstance(fromlist, list):
            raise AssertionError(f"{importer} imports {name} during the call")
        return original(name, globals, locals, fromlist, level)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", guarded)
        yield


class Recorder:
    """Stands for the operator: keeps its arguments, returns rows and counts of the right kind."""

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, buffer: Any, **constant: Any) -> Any:
        def operator(x: Tensor, ids: Tensor, weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            self.calls.append(((x, ids, weights), constant | {"sym_buffer": buffer, "x_active_mask": mask}))
            return torch.empty_like(x), torch.empty(self.experts, dtype=torch.int32, device=x.device)

        return operator


def no_buffer(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the call makes a buffer")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder(4)
    monkeypatch.setattr(state, "bind", recorder)
    return recorder


def variants() -> Iterator[Any]:
    """Every branch of a call."""
    plain = make_case("a8w8-fp", Shape(tokens=(9,)))
    yield pytest.param(plain, plan_of(plain), id="one call")
    for pad in ("own", "dp_max", "num_max"):
        yield pytest.param(plain, plan_of(plain, chunk=4, pad=pad), id=f"three calls, {pad}")
    yield pytest.param(plain, plan_of(plain, pad="num_max"), id="padded")
    plan = plan_of(plain, max_recv_token_num=10, allow_token_drop=True)
    yield pytest.param(plain, plan, id="drops")
    yield pytest.param(plain, replace(plan_of(plain), padding=Padding(128, 64, 96, 64)), id="wider rows")
    shared = make_case("a8w8-fp", Shape(tokens=(9,)), shared=2)
    yield pytest.param(shared, replace(plan_of(shared), fold_scaling=2.5), id="fused shared experts")


@pytest.mark.parametrize(("case", "plan"), list(variants()))
def test_the_call_is_pure(case: Case, plan: LayerPlan, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(case, 0, plan)
    x, ids, weights = rows_of(case, 0)
    monkeypatch.setattr(buffers, "get_symm_buffer_for_mega_moe", no_buffer)
    with no_imports(monkeypatch), NoHostReads():
        state.run(x, ids, weights)
        state.run(x, ids, weights)
    assert len(recorder.calls) == state.calls == 2 * -(-9 // plan.capacity.chunk)
    same_arguments(recorder)


def same_arguments(recorder: Recorder) -> None:
    """What does not depend on the rows is the same object in every call: nothing was converted on the way."""
    first = recorder.calls[0][1]
    for _, arguments in recorder.calls[1:]:
        assert arguments.keys() == first.keys()
        changed = [name for name, value in arguments.items() if value is not first[name] and name != "x_active_mask"]
        assert not changed


@pytest.mark.parametrize(("case", "plan"), list(variants()))
def test_the_call_runs_on_tensors_without_data(case: Case, plan: LayerPlan, recorder: Recorder) -> None:
    """The meta device has no bytes: whatever the host expected to know of them would raise."""
    state = state_of(case, 0, plan)
    load = state.load
    load.counts = load.counts.to("meta")
    load.dropped = None if load.dropped is None else load.dropped.to("meta")
    load.largest = None if load.largest is None else load.largest.to("meta")
    y = state.run(*(t.to("meta") for t in rows_of(case, 0)))
    assert (tuple(y.shape), y.device.type, y.is_contiguous()) == ((9, 96), "meta", True)


def test_rows_of_the_right_kind_are_passed_as_they_are(recorder: Recorder) -> None:
    case = make_case("a8w8-int", Shape(tokens=(9,)))
    state = state_of(case, 0, plan_of(case))
    x, ids, weights = rows_of(case, 0)
    state.run(x, ids, weights)
    ((got_x, got_ids, got_weights), arguments) = recorder.calls[0]
    assert [t.data_ptr() for t in (got_x, got_ids, got_weights)] == [t.data_ptr() for t in (x, ids, weights)]
    assert arguments["x_active_mask"] is None
    assert arguments["sym_buffer"] is state.buffer


@pytest.mark.parametrize("fault", ["reads", "imports", "casts"])
def test_the_guards_see_a_fault(fault: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a call that does what it must not do is caught."""
    whole = LayerState._call

    def faulty(self: LayerState, x: Tensor, ids: Tensor, weights: Tensor, *others: Any) -> Tensor:
        if fault == "reads":
            int(ids.sum())
        if fault == "casts":
            x = x.to(torch.float32)
        if fault == "imports":
            exec("import math", {"__name__": "vllm_megamoe.method.layer_state"})
        return whole(self, x, ids, weights, *others)

    monkeypatch.setattr(LayerState, "_call", faulty)
    case = make_case("a8w8-fp", Shape(tokens=(9,)))
    state = state_of(case, 0, plan_of(case))
    rows = rows_of(case, 0)
    with pytest.raises(AssertionError, match=r"imports math|the call runs"), no_imports(monkeypatch), NoHostReads():
        state.run(*rows)


def test_router_weights_of_another_type_become_float32(recorder: Recorder) -> None:
    """A2 and A3 read the bytes of BF16 weights as float32 (docs/limits.md, router weights)."""
    case = make_case("a8w8-int", Shape(tokens=(9,)))
    state = state_of(case, 0, plan_of(case, chunk=4, pad="dp_max"))
    x, ids, weights = rows_of(case, 0)
    state.run(x, ids, weights.to(torch.bfloat16))
    passed = torch.cat([call[0][2] for call in recorder.calls])
    assert passed.dtype == torch.float32
    assert passed[:3].equal(weights.to(torch.bfloat16).float()[:3])
