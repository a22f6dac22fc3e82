"""Fake tensors and torch.compile: shapes propagate, one graph, the same bits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe

CASES = [("a16w16", False), ("a8w8-int", True), ("a8w4-int", True), ("a8w8-fp", True), ("a8w4-fp", True)]


def prepared(use_case: str, blocks: bool, tokens: int = 5) -> tuple[SymmBuffer, dict[str, Any]]:
    """A buffer for up to 16 tokens and the arguments of a call."""
    case = make_case(use_case, Shape(tokens=(tokens,)))
    expected = buffer_arguments(case) | {"num_max_tokens_per_rank": 16}
    return get_symm_buffer_for_mega_moe(None, **expected), call_arguments(case, 0, Form(blocks=blocks))


def fake(mode: FakeTensorMode, value: Any) -> Any:
    """Tensors, and lists of them, as fake ones."""
    if isinstance(value, list):
        return [fake(mode, item) for item in value]
    return mode.from_tensor(value) if isinstance(value, Tensor) else value


@pytest.mark.parametrize(("use_case", "blocks"), CASES)
def test_fake_tensors_get_the_shapes(use_case: str, blocks: bool) -> None:
    buffer, arguments = prepared(use_case, blocks)
    with FakeTensorMode() as mode:
        y, counts = mega_moe(**{n: fake(mode, v) for n, v in arguments.items()}, sym_buffer=buffer)
    assert (tuple(y.shape), y.dtype) == ((5, 96), torch.bfloat16)
    assert (tuple(counts.shape), counts.dtype) == ((4,), torch.int32)


def test_fake_prequantised_tokens_give_bf16_of_the_logical_width() -> None:
    # op csrc: y is bf16 even where x is packed fp4, and H is twice its width
    case = replace(make_case("a4w4-fp", Shape()), prequantised=True)
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
    arguments = call_arguments(case, 0, Form())
    assert tuple(arguments["x"].shape) == (5, 48)
    with FakeTensorMode() as mode:
        y, _ = mega_moe(**{n: fake(mode, v) for n, v in arguments.items()}, sym_buffer=buffer)
    assert (tuple(y.shape), y.dtype) == ((5, 96), torch.bfloat16)


@pytest.mark.parametrize(("use_case", "blocks"), CASES)
def test_compiles_to_one_graph_with_the_same_bits(use_case: str, blocks: bool) -> None:
    torch._dynamo.reset()
    buffer, arguments = prepared(use_case, blocks)

    def layer(x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> tuple[Tensor, Tensor]:
        given = {"x": x * 1, "topk_ids": topk_ids, "topk_weights": topk_weights}
        y, counts = mega_moe(**arguments | given, sym_buffer=buffer)
        return y + 0, counts

    inputs = [arguments[name] for name in ("x", "topk_ids", "topk_weights")]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for got, want in zip(compiled(*inputs), layer(*inputs), strict=True):
        assert got.dtype == want.dtype
        assert got.equal(want)


def test_token_counts_do_not_recompile() -> None:
    torch._dynamo.reset()
    buffer, arguments = prepared("a8w8-int", True, tokens=9)
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    def layer(x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        given = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights}
        return mega_moe(**arguments | given, sym_buffer=buffer)[0]

    inputs = [arguments[name] for name in ("x", "topk_ids", "topk_weights")]
    compiled = torch.compile(layer, fullgraph=True, backend=count, dynamic=True)
    whole = layer(*inputs)
    for tokens in (9, 4, 7):
        assert compiled(*(t[:tokens].clone() for t in inputs)).equal(whole[:tokens])
    assert len(graphs) == 1
