"""Calls that the operator rejects: the message names the argument, what came and what to do."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe

REMEDY = r"(?s)expected .+\. [A-Z][^.]+.*\.$"  # what would be right, and a last sentence that says what to do
Change = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A call that is right but for one thing. The message holds `argument`, what `came`, and a `remedy`: patterns."""

    name: str
    use_case: str
    argument: str
    came: str
    change: dict[str, Change] = field(default_factory=dict)
    buffer: dict[str, Any] = field(default_factory=dict)
    prequantised: bool = False
    shared: int = 0
    carrier: str = "int8"
    remedy: str = ""


def to(value: Any) -> Change:
    """The argument becomes this value."""
    return lambda arguments: value


def each(name: str, function: Callable[[Tensor], Tensor]) -> dict[str, Change]:
    """Every tensor of a list argument is changed."""
    return {name: lambda arguments: [function(t) for t in arguments[name]]}


def one(name: str, function: Callable[[Tensor], Any]) -> dict[str, Change]:
    """A tensor argument is changed."""
    return {name: lambda arguments: function(arguments[name])}


def with_id(row: int, k: int, value: int) -> dict[str, Change]:
    """One id of topk_ids is another number."""

    def change(ids: Tensor) -> Tensor:
        ids[row, k] = value
        return ids

    return one("topk_ids", change)


def twice(ids: Tensor) -> Tensor:
    """Token 2 chooses an expert twice."""
    ids[2, 1] = ids[2, 0]
    return ids


NOTHING = "None|0 tensors|no tensor"
INT8, INT4, BF16, FP8, A8W4, A4W4 = "a8w8-int", "a8w4-int", "a16w16", "a8w8-fp", "a8w4-fp", "a4w4-fp"
CALLS = [
    Rejection("id_too_large", INT8, "topk_ids", "4", with_id(1, 2, 4)),
    Rejection("id_below_minus_one", INT8, "topk_ids", "-2", with_id(1, 2, -2)),
    Rejection("id_twice", INT8, "topk_ids", "2", one("topk_ids", twice)),
    Rejection(
        "ids_int64", INT8, "topk_ids", "int64", one("topk_ids", lambda t: t.long()), remedy="to\\(torch\\.int32\\)"
    ),
    Rejection("ids_too_few_rows", INT8, "topk_ids", "4", one("topk_ids", lambda t: t[:4])),
    Rejection("ids_other_topk", INT8, "topk_ids", "2", one("topk_ids", lambda t: t[:, :2].contiguous())),
    Rejection("router_weights_other_shape", INT8, "topk_weights", "2", one("topk_weights", lambda t: t[:, :2])),
    Rejection(
        "router_weights_float64",
        INT8,
        "topk_weights",
        "float64",
        one("topk_weights", lambda t: t.double()),
        remedy="float\\(\\)",
    ),
    Rejection("x_float16", INT8, "x", "float16", one("x", lambda t: t.half()), remedy="to\\(torch\\.bfloat16\\)"),
    Rejection("x_three_dimensions", INT8, "x", r"1, 5, 96", one("x", lambda t: t[None])),
    Rejection("x_narrow", INT8, "hidden", "64", one("x", lambda t: t[:, :64])),
    Rejection(
        "mask_two_dimensions", INT8, "x_active_mask", "1", {"x_active_mask": to(torch.ones(5, 1, dtype=torch.int8))}
    ),
    Rejection("mask_bool", INT8, "x_active_mask", "bool", {"x_active_mask": to(torch.ones(5, dtype=torch.bool))}),
    Rejection("mask_too_long", INT8, "x_active_mask", "6", {"x_active_mask": to(torch.ones(6, dtype=torch.int8))}),
    Rejection(
        "too_many_tokens",
        INT8,
        "num_max_tokens_per_rank",
        "5",
        buffer={"num_max_tokens_per_rank": 4},
        remedy="larger buffer",
    ),
    Rejection("topk_of_the_buffer", INT8, "num_topk", "2", buffer={"num_topk": 2}),
    Rejection("hidden_of_the_buffer", INT8, "hidden", "128", buffer={"hidden": 128}),
    Rejection("experts_of_the_buffer", INT8, "num_experts|l1_weights", "8", buffer={"num_experts": 8}),
    Rejection("a_weight_is_missing", INT8, "l1_weights", "3", {"l1_weights": lambda a: a["l1_weights"][:3]}),
    Rejection("l2_of_another_width", INT8, "l2_weights", "32", each("l2_weights", lambda t: t[:32])),
    Rejection(
        "mixed_lists", INT8, "l2_weights", "stack|3-D|list|1", {"l2_weights": lambda a: [torch.stack(a["l2_weights"])]}
    ),
    Rejection(
        "int8_without_scales",
        INT8,
        "l1_weights_sf",
        NOTHING,
        {"l1_weights_sf": to(None)},
        remedy="view\\(torch\\.int32\\)",
    ),
    Rejection(
        "int8_scales_float32",
        INT8,
        "l2_weights_sf",
        "float32",
        each("l2_weights_sf", lambda t: t.float()),
        remedy="view\\(torch\\.int32\\)",
    ),
    Rejection("int8_scales_too_short", INT8, "l1_weights_sf", "127", each("l1_weights_sf", lambda t: t[:127])),
    Rejection(
        "int8_with_bias",
        INT8,
        "l1_bias",
        "A8W4-INT|a8w4-int|INT4",
        {"l1_bias": to([torch.zeros(128)] * 4)},
        remedy="drop",
    ),
    Rejection("int4_without_bias", INT4, "l2_bias", NOTHING, {"l2_bias": to(None)}, remedy="8 \\*"),
    Rejection("int4_bias_bf16", INT4, "l1_bias", "bfloat16", each("l1_bias", lambda t: t.bfloat16())),
    Rejection(
        "int32_carrier_with_285",
        INT4,
        "weight1_type",
        "285|INT4",
        {"weight1_type": to(285), "weight2_type": to(285)},
        carrier="int32",
        remedy="drop",
    ),
    Rejection(
        "bf16_with_scales", BF16, "l1_weights_sf", "", {"l1_weights_sf": to([torch.ones(128, dtype=torch.int64)] * 4)}
    ),
    Rejection(
        "bf16_dispatched_as_int8",
        BF16,
        "dispatch_quant_mode",
        "2",
        buffer={"dispatch_quant_mode": 2, "dispatch_quant_out_dtype": torch.int8},
    ),
    Rejection(
        "int8_not_dispatched",
        INT8,
        "dispatch_quant_mode",
        "0",
        buffer={"dispatch_quant_mode": 0, "dispatch_quant_out_dtype": None},
    ),
    Rejection(
        "e5m2_on_e4m3",
        FP8,
        "l1_weights|dispatch_quant_out_dtype",
        "e5m2",
        buffer={"dispatch_quant_out_dtype": torch.float8_e5m2},
    ),
    Rejection(
        "a8w4_on_e5m2",
        A8W4,
        "l1_weights|dispatch_quant_out_dtype",
        "e5m2",
        buffer={"dispatch_quant_out_dtype": torch.float8_e5m2},
    ),
    Rejection("fp8_without_scales", FP8, "l2_weights_sf", NOTHING, {"l2_weights_sf": to(None)}, remedy="e8m0"),
    Rejection(
        "fp8_scales_unpaired",
        FP8,
        "l1_weights_sf",
        "3",
        each("l1_weights_sf", lambda t: t.view(torch.uint8).flatten(1)[:, :3].contiguous().view(torch.float8_e8m0fnu)),
    ),
    Rejection(
        "fp4_without_its_type",
        A8W4,
        "weight1_type|l1_weights",
        "uint8",
        {"weight1_type": to(None), "weight2_type": to(None)},
        remedy="weight1_type=296",
    ),
    Rejection("prequantised_without_scales", FP8, "scales", "None", {"scales": to(None)}, prequantised=True),
    Rejection(
        "scales_without_prequantised_x",
        FP8,
        "scales",
        "4|mode",
        {"scales": to(torch.ones(5, 3).to(torch.float8_e8m0fnu))},
    ),
    Rejection(
        "prequantised_x_of_another_type",
        FP8,
        "x",
        "e5m2",
        one("x", lambda t: t.view(torch.uint8).view(torch.float8_e5m2)),
        prequantised=True,
    ),
    Rejection("shared_bias", FP8, "shared_l1_bias", "", {"shared_l1_bias": to([torch.zeros(128)])}, shared=1),
    Rejection("five_shared_experts", FP8, "shared_l1_weights", "5", shared=5, remedy="fewer"),
    Rejection(
        "shared_without_scales", FP8, "shared_l2_weights_sf", NOTHING, {"shared_l2_weights_sf": to(None)}, shared=1
    ),
    Rejection(
        "half_of_the_shared_weights", FP8, "shared_l2_weights", NOTHING, {"shared_l2_weights": to(None)}, shared=1
    ),
    Rejection(
        "shared_type_of_prequantised_x",
        A4W4,
        "shared_expert_quant_out_dtype",
        "24|e4m3",
        {"shared_expert_quant_out_dtype": to(24)},
        prequantised=True,
        shared=1,
    ),
    Rejection(
        "merged_rows_and_quantised_combine",
        FP8,
        "combine_comm_mode",
        "combine_quant_mode",
        buffer={"combine_comm_mode": 1, "combine_quant_mode": 3},
        remedy="one of the two to 0",
    ),
    Rejection(
        "merged_rows_and_prequantised_x",
        FP8,
        "combine_comm_mode",
        "topk_weights_type",
        buffer={"combine_comm_mode": 1},
        prequantised=True,
        remedy="topk_weights_type=1",
    ),
]


def attempt(rejection: Rejection) -> None:
    """Make the buffer and the call."""
    case = replace(make_case(rejection.use_case, Shape(), shared=rejection.shared), prequantised=rejection.prequantised)
    arguments = call_arguments(case, 0, Form(carrier=rejection.carrier))
    changed = {name: change(arguments) for name, change in rejection.change.items()}
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case) | rejection.buffer)
    mega_moe(**arguments | changed, sym_buffer=buffer)


@pytest.mark.parametrize("rejection", CALLS, ids=lambda r: r.name)
def test_call_is_rejected(rejection: Rejection) -> None:
    with pytest.raises(OperatorError, match=REMEDY) as info:
        attempt(rejection)
    for pattern in (rejection.argument, rejection.came, rejection.remedy):
        assert info.match(rf"(?is).*({pattern})")


ACTIVATIONS = [
    ({"activation": "relu"}, r"(?s)relu.*swiglu"),
    ({"activation": "swigluoai", "activation_params": {"gamma": 1.0}}, r"(?s)gamma.*alpha"),
    ({"activation": "swiglu", "activation_params": {"alpha": 1.0}}, "alpha"),
    ({"activation_clamp": -1.0}, r"clamp.*-1"),
    ({"activation_clamp": float("nan")}, r"clamp.*nan"),
    ({"activation": "swigluoai", "activation_params": {"alpha": float("inf")}}, r"alpha.*inf"),
    ({"activation": "situglu", "activation_params": {"beta": 0.0}}, r"beta.*0"),
    ({"activation": "situglu", "activation_params": {"beta": 1.0, "linear_beta": -2.0}}, r"linear_beta.*-2"),
]


@pytest.mark.parametrize(("options", "text"), ACTIVATIONS, ids=[str(i) for i in range(len(ACTIVATIONS))])
def test_activation_is_rejected(options: dict[str, Any], text: str) -> None:
    case = make_case("a16w16", Shape())
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
    with pytest.raises(OperatorError, match=text):
        mega_moe(**call_arguments(case, 0, Form()) | options, sym_buffer=buffer)
