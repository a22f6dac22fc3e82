"""A layer's step dispatches two operations beside the operator: rows and steps are counted by one addition each."""

from typing import Any

import pytest
import torch
from layer.layers import ALONE, plan_of, rows_of, state_of
from oracle.make import Shape, make_case
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_megamoe.layer import state


class Counted(TorchDispatchMode):
    """Keeps the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int"])
def test_two_additions_beside_the_operator(use_case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(use_case, Shape(tokens=(5,)))
    x, ids, weights = rows_of(case, 0)
    answer = torch.empty_like(x), torch.ones(case.num_experts, dtype=torch.int32)
    monkeypatch.setattr(state, "bind", lambda *bound, **constant: lambda *rows: answer)
    layer = state_of(case, 0, plan_of(case), seat=ALONE)
    with Counted() as seen:
        y = layer.run(x, ids, weights)
    assert y is answer[0]
    assert seen.names == ["aten::add_.Tensor", "aten::add_.Tensor"]
    assert layer.counts.tolist() == [1] * case.num_experts
    assert (layer.steps, layer.calls) == (1, 1)
