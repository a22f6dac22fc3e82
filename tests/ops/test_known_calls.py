"""Calls like earlier ones: nothing that differs is missed, and no weight is kept."""

import gc
import weakref
from typing import Any

import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.ops.twin import known


def prepared(use_case: str, form: Form | None = None) -> tuple[SymmBuffer, dict[str, Any]]:
    case = make_case(use_case, Shape())
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
    return buffer, call_arguments(case, 0, form or Form())


def run(buffer: SymmBuffer, arguments: dict[str, Any], **changed: Any) -> Tensor:
    return mega_moe(**arguments | changed, sym_buffer=buffer)[0]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each whole reading."""
    found: list[object] = []
    whole = known._read

    def counted(*given: Any) -> Any:
        found.append(given)
        return whole(*given)

    monkeypatch.setattr(known, "_read", counted)
    return found


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a4w4-fp"])
@pytest.mark.parametrize("form", [Form(), Form(blocks=True), Form(stacked=True), Form(blocks=True, stacked=True)])
def test_a_second_call_reads_rows_alone(use_case: str, form: Form, readings: list[object]) -> None:
    buffer, arguments = prepared(use_case, form)
    first = run(buffer, arguments)
    assert len(readings) == 1
    fewer = {name: arguments[name][:2] for name in ("x", "topk_ids", "topk_weights")}
    assert run(buffer, arguments, **fewer).equal(first[:2])
    assert run(buffer, arguments).equal(first)
    assert len(readings) == 1


def test_what_differs_is_read_anew(readings: list[object]) -> None:
    buffer, arguments = prepared("a16w16")
    first = run(buffer, arguments)
    other = [tensor.clone() for tensor in arguments["l2_weights"]]
    assert run(buffer, arguments, l2_weights=other).equal(first)
    assert not run(buffer, arguments, activation_clamp=0.25).equal(first)
    assert not run(buffer, arguments, activation="swigluoai").equal(first)
    with settings(numerics="spec"):
        run(buffer, arguments)
    assert len(readings) == 5


@pytest.mark.parametrize("changed", [{"num_topk": 2}, {"num_topk": True}, {"num_experts": 8}, {"hidden": 128}])
def test_a_changed_attribute_is_rejected_as_in_a_first_call(changed: dict[str, Any]) -> None:
    buffer, arguments = prepared("a8w8-int")
    run(buffer, arguments)
    for name, value in changed.items():
        setattr(buffer, name, value)
    with pytest.raises(OperatorError):
        run(buffer, arguments)


def test_wrong_rows_are_rejected_as_in_a_first_call() -> None:
    buffer, arguments = prepared("a16w16")
    run(buffer, arguments)
    for name, wrong in {
        "x": arguments["x"].float(),
        "topk_ids": arguments["topk_ids"].long(),
        "topk_weights": arguments["topk_weights"][:1],
        "x_active_mask": torch.ones(5, dtype=torch.int32),
        "scales": torch.ones(5, 3, dtype=torch.uint8),
    }.items():
        with pytest.raises(OperatorError, match=name):
            run(buffer, arguments, **{name: wrong})


def test_new_numbers_in_the_same_memory_count() -> None:
    buffer, arguments = prepared("a8w8-int", Form(blocks=True))
    first = run(buffer, arguments)
    for tensor in arguments["l2_weights_sf"]:
        tensor.zero_()
    assert first.any()
    assert not run(buffer, arguments).any()


@pytest.mark.parametrize("kernels", ["on", "off"])
def test_a_weight_that_was_turned_in_place_is_rejected(kernels: str) -> None:
    buffer, arguments = prepared("a16w16")
    with settings(kernels=kernels):
        run(buffer, arguments)
        for tensor in arguments["l1_weights"]:
            tensor.t_()
        with pytest.raises(OperatorError, match="changing the shape"):
            run(buffer, arguments)


def test_no_weight_is_kept() -> None:
    buffer, arguments = prepared("a8w4-int")
    run(buffer, arguments)
    held = [weakref.ref(tensor) for tensor in arguments["l1_weights"] + arguments["l1_bias"]]
    arguments.clear()
    gc.collect()
    assert [reference() for reference in held] == [None] * len(held)
