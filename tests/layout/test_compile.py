"""Formatted weights under fake tensors and torch.compile: no graph break, same bytes."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.formatted import inner

# torch 2.10 graph-breaks at the class in a traced cast and in `unbind`; newer ones do not. On an NPU no such tensor is
# traced: formats are a property of the storage there.
TRACED = pytest.mark.skipif(torch.__version__ < "2.11", reason="torch 2.10 cannot trace a formatted tensor's making")


@torch.library.custom_op("vllm_megamoe_test::weigh", mutates_args=())
def weigh(x: Tensor, stored: list[Tensor], fmt: int) -> Tensor:
    """Tell byte orders apart: a sum weighted by position."""
    total = sum((s.flatten().float() * torch.arange(s.numel())).sum() for s in stored)
    return x + total + fmt


@weigh.register_fake
def _(x: Tensor, stored: list[Tensor], fmt: int) -> Tensor:
    del stored, fmt
    return torch.empty_like(x)


def call(x: Tensor, weights: list[Tensor]) -> Tensor:
    return weigh(x, [inner(w) for w in weights], int(format_of(weights[0]))) * weights[0].shape[1]


@pytest.fixture
def weight() -> Tensor:
    return (torch.arange(40 * 48, dtype=torch.int32) % 13).to(torch.int8).view(40, 48)


def compiled(function: object, *arguments: object) -> Tensor:
    torch._dynamo.reset()
    result: Tensor = torch.compile(function, fullgraph=True, backend="aot_eager")(*arguments)  # type: ignore[call-overload]
    return result


def test_a_list_of_arguments(weight: Tensor) -> None:
    weights = [format_cast(weight, 29), format_cast(weight + 1, 29)]
    assert compiled(call, torch.ones(3), weights).equal(call(torch.ones(3), weights))


@TRACED
def test_a_stack_is_unbound_in_the_graph(weight: Tensor) -> None:
    stack = format_cast(torch.stack([weight, weight + 1]), 29)

    def function(x: Tensor, s: Tensor) -> Tensor:
        return call(x, list(s.unbind(0))) + call(x, [s[1]])

    assert compiled(function, torch.ones(3), stack).equal(function(torch.ones(3), stack))


def test_parameters_of_a_module(weight: Tensor) -> None:
    module = torch.nn.ParameterList([torch.nn.Parameter(format_cast(weight, 29), requires_grad=False)])

    def function(x: Tensor) -> Tensor:
        return call(x, list(module))

    assert compiled(function, torch.ones(3)).equal(function(torch.ones(3)))


@TRACED
def test_a_cast_and_a_view_in_the_graph(weight: Tensor) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return call(x, [format_cast(w, 29).view(torch.int32)])

    assert compiled(function, torch.ones(3), weight).equal(function(torch.ones(3), weight))


def test_fake_tensors_have_the_same_shapes(weight: Tensor) -> None:
    real = format_cast(weight, 29)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
        assert (fake.shape, inner(fake).shape, format_of(fake)) == (real.shape, inner(real).shape, AclFormat.FRACTAL_NZ)
        assert fake.view(torch.int32).shape == (40, 12)
        assert inner(format_cast(mode.from_tensor(weight), 29)).shape == inner(real).shape
