"""Buffers that the operator does not make: the message names the argument, what came and what to do."""

from typing import Any

import pytest
import torch
from ops.operands import buffer_arguments
from oracle.make import Shape, make_case

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe
from vllm_megamoe.testing.ranks import Failure, World

REMEDY = r"(?s)expected .+\. [A-Z][^.]+.*\.$"  # what would be right, and a last sentence that says what to do


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("dispatch_quant_mode", 3),
        ("combine_quant_mode", 1),
        ("comm_alg", "ring"),
        ("topk_weights_type", 2),
        ("combine_comm_mode", 2),
        ("max_recv_token_num", -1),
        ("num_experts", 0),
        ("num_topk", 0),
        ("hidden", 0),
        ("num_max_tokens_per_rank", -1),
    ],
)
def test_buffer_is_rejected(argument: str, value: Any) -> None:
    expected = buffer_arguments(make_case("a8w8-int", Shape())) | {argument: value}
    with pytest.raises(OperatorError, match=rf"{argument}={value!r}") as info:
        get_symm_buffer_for_mega_moe(None, **expected)
    assert info.match(REMEDY)


@pytest.mark.parametrize("value", [torch.float16, 30, "int8"])
def test_buffer_rejects_unknown_types(value: Any) -> None:
    expected = buffer_arguments(make_case("a8w8-int", Shape())) | {"dispatch_quant_out_dtype": value}
    with pytest.raises(OperatorError, match="dispatch_quant_out_dtype"):
        get_symm_buffer_for_mega_moe(None, **expected)


def test_buffer_rejects_an_unknown_group() -> None:
    expected = buffer_arguments(make_case("a8w8-int", Shape()))
    with pytest.raises(OperatorError, match=r"(?s)group='elsewhere'.*new_group"):
        get_symm_buffer_for_mega_moe("elsewhere", **expected)


def _odd_experts() -> None:
    from torch import distributed as dist

    expected = buffer_arguments(make_case("a8w8-int", Shape())) | {"num_experts": 5}
    get_symm_buffer_for_mega_moe(dist.group.WORLD, **expected)


def test_experts_must_divide_over_the_ranks(two_ranks: World) -> None:
    for failure in two_ranks.outcomes(_odd_experts, [(), ()]):
        assert isinstance(failure, Failure)
        assert failure.kind == "OperatorError"
        assert "num_experts=5" in failure.message
        assert "2" in failure.message
