"""Names, defaults, spellings, strides and the buffer's attributes: what callers of the operator rely on."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ops.calls import numerics_of
from ops.compare import check_bits, run
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe, settings

EMPTY = inspect.Parameter.empty
# torch_api.txt, Prototype; the rest from operator_readme.txt and the operator's wrapper
BUFFER: dict[str, Any] = dict.fromkeys(
    ["group", "num_experts", "num_max_tokens_per_rank", "num_topk", "hidden", "intermediate_hidden"], EMPTY
)
BUFFER_OPTIONS = {
    "max_recv_token_num": 0,
    "dispatch_quant_mode": 0,
    "dispatch_quant_out_dtype": None,
    "combine_quant_mode": 0,
    "comm_alg": "",
    "topk_weights_type": 0,
    "combine_comm_mode": 0,
}
CALL: dict[str, Any] = dict.fromkeys(["x", "topk_ids", "topk_weights", "l1_weights", "l2_weights", "sym_buffer"], EMPTY)
CALL_OPTIONS = {
    **dict.fromkeys(["l1_weights_sf", "l2_weights_sf", "l1_bias", "l2_bias", "x_active_mask"]),
    "activation": "swiglu",
    **dict.fromkeys(["activation_clamp", "activation_params", "weight1_type", "weight2_type"]),
    **dict.fromkeys(["shared_l1_weights", "shared_l2_weights", "shared_l1_weights_sf", "shared_l2_weights_sf"]),
    **dict.fromkeys(["shared_l1_bias", "shared_l2_bias", "scales", "shared_weight1_type", "shared_weight2_type"]),
    "shared_expert_quant_out_dtype": None,
}


@pytest.mark.parametrize(
    ("function", "positional", "options"),
    [(get_symm_buffer_for_mega_moe, BUFFER, BUFFER_OPTIONS), (mega_moe, CALL, CALL_OPTIONS)],
    ids=["buffer", "call"],
)
def test_signatures_are_the_documents(function: Any, positional: dict[str, Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters) == [*positional, *options]
    for name, parameter in parameters.items():
        keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert keyword == (name in options)
        assert parameter.default == options.get(name, EMPTY)


@pytest.mark.parametrize(
    ("name", "least"),
    {
        # A layer has an expert, a choice and a width; of the others 0 has a meaning: no tokens, the weights' own width
        # (torch_api.txt, parameter consistency), room for all rows that come (operator_readme.txt, maxRecvTokenNum).
        "num_experts": 1,
        "num_topk": 1,
        "hidden": 1,
        "num_max_tokens_per_rank": 0,
        "intermediate_hidden": 0,
        "max_recv_token_num": 0,
    }.items(),
)
def test_the_least_that_a_size_may_be(name: str, least: int) -> None:
    sizes = {"num_experts": 1, "num_max_tokens_per_rank": 4, "num_topk": 1, "hidden": 64, "intermediate_hidden": 32}
    made = get_symm_buffer_for_mega_moe(None, **sizes | {name: least})
    assert getattr(made, name) == least
    with pytest.raises(OperatorError, match=rf"{name}={least - 1}; expected"):
        get_symm_buffer_for_mega_moe(None, **sizes | {name: least - 1})


def call(case: Case, changes: dict[str, Any] | None = None, **buffer_changes: Any) -> Tensor:
    """y of the single rank, with some arguments replaced."""
    with settings(numerics=numerics_of(case)):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case) | buffer_changes)
        y, _ = mega_moe(**call_arguments(case, 0, Form()) | (changes or {}), sym_buffer=buffer)
    return y


def strided(tensor: Tensor) -> Tensor:
    """The same numbers with a gap after each."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


@pytest.mark.parametrize("name", ["x", "topk_ids", "topk_weights", "x_active_mask"])
@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int"])
def test_strided_tokens_and_routers_are_taken(use_case: str, name: str) -> None:
    case = make_case(use_case, Shape())
    case = replace(case, ranks=(replace(case.ranks[0], mask=np.int8([1, 1, 0, 1, 1])),))
    given = call_arguments(case, 0, Form())[name]
    assert call(case, {name: strided(given)}).equal(call(case))


@pytest.mark.parametrize("name", ["l1_weights", "l2_weights"])
@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w8-fp"])
def test_strided_weights_are_rejected(use_case: str, name: str) -> None:
    case = make_case(use_case, Shape())
    given = call_arguments(case, 0, Form())[name]
    turned = [w.t().contiguous().t() for w in given]
    with pytest.raises(ValueError, match=rf"{name}.*contiguous"):
        call(case, {name: turned})


@pytest.mark.parametrize("name", ["l1_weights_sf", "l2_weights_sf", "l1_bias", "l2_bias"])
def test_strided_scales_and_biases_are_rejected(name: str) -> None:
    case = make_case("a8w4-int", Shape())
    given = call_arguments(case, 0, Form())[name]
    with pytest.raises(ValueError, match=rf"{name}.*contiguous"):
        call(case, {name: [strided(t) for t in given]})


@pytest.mark.parametrize("spelling", [torch.int8, 1, 258])
def test_spellings_of_int8(spelling: Any) -> None:
    case = make_case("a8w8-int", Shape())
    types = {"weight1_type": spelling, "weight2_type": spelling}
    assert call(case, types, dispatch_quant_out_dtype=spelling).equal(call(case))


@pytest.mark.parametrize(
    ("elem", "spelling"),
    [("e5m2", 23), ("e5m2", 291), ("e4m3", 24), ("e4m3", 292), ("e4m3", torch.float8_e4m3fn)],
)
def test_spellings_of_fp8(elem: str, spelling: Any) -> None:
    case = make_case("a8w8-fp", Shape(), act_elem=elem)
    types = {"weight1_type": spelling, "weight2_type": spelling}
    assert call(case, types, dispatch_quant_out_dtype=spelling).equal(call(case))


@pytest.mark.parametrize("spelling", [296, torch.float4_e2m1fn_x2])
def test_spellings_of_fp4(spelling: Any) -> None:
    case = make_case("a8w4-fp", Shape())
    assert call(case, {"weight1_type": spelling, "weight2_type": spelling}).equal(call(case))


def test_scales_may_be_uint64() -> None:
    case = make_case("a8w8-int", Shape())
    given = call_arguments(case, 0, Form())
    views = {name: [t.view(torch.uint64) for t in given[name]] for name in ("l1_weights_sf", "l2_weights_sf")}
    assert call(case, views).equal(call(case))


def test_router_weights_may_be_bf16() -> None:
    # operator_readme.txt: BF16 or FP32
    case = make_case("a8w8-fp", Shape())
    short = call_arguments(case, 0, Form())["topk_weights"].bfloat16()
    widened = replace(case, ranks=(replace(case.ranks[0], topk_weights=short.float().numpy()),))
    check_bits(widened)
    assert call(case, {"topk_weights": short}).equal(call(widened))


def test_x_is_not_changed() -> None:
    # vllm #28942: the shared expert ran on tokens that the routed path had changed
    case = make_case("a8w8-int", Shape())
    x = call_arguments(case, 0, Form())["x"]
    before = x.clone()
    call(case, {"x": x})
    assert x.equal(before)


def test_buffer_attributes() -> None:
    # op wrapper, SymmBuffer
    case = make_case("a8w8-int", Shape())
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case) | {"intermediate_hidden": 128})
    assert isinstance(buffer, SymmBuffer)
    expected = {
        "rank_id": 0,
        "ep_world_size": 1,
        "num_experts": 4,
        "num_max_tokens_per_rank": 5,
        "num_topk": 3,
        "hidden": 96,
        "intermediate_hidden": 128,
        "max_recv_token_num": 0,
        "dispatch_quant_mode": 2,
        "dispatch_quant_out_dtype": torch.int8,
        "combine_quant_mode": 0,
        "comm_alg": "",
        "topk_weights_type": 0,
    }
    assert {name: getattr(buffer, name) for name in expected} == expected
    for name in ("group", "group_name", "ccl_buffer_size", "context", "topo_type", "rank_num_per_server"):
        assert hasattr(buffer, name)
    assert isinstance(buffer.ccl_buffer_size, int)


def test_attributes_are_read_at_every_call() -> None:
    # op wrapper: vllm-ascend changes the dispatch mode between layers
    integer, mx = make_case("a8w8-int", Shape()), make_case("a8w8-fp", Shape())
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(integer))
    first, _ = mega_moe(**call_arguments(integer, 0, Form()), sym_buffer=buffer)
    buffer.dispatch_quant_mode, buffer.dispatch_quant_out_dtype = 4, torch.float8_e4m3fn
    second, _ = mega_moe(**call_arguments(mx, 0, Form()), sym_buffer=buffer)
    assert first.equal(call(integer))
    assert second.equal(call(mx))


def test_a_destroyed_buffer_is_rejected() -> None:
    case = make_case("a8w8-int", Shape())
    buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
    buffer.destroy()
    buffer.destroy()
    with pytest.raises(ValueError, match=r"sym_buffer.*destroyed"):
        mega_moe(**call_arguments(case, 0, Form()), sym_buffer=buffer)


def test_results_are_fresh_tensors() -> None:
    case = make_case("a16w16", Shape())
    with settings(numerics=numerics_of(case)):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
        first, _ = mega_moe(**call_arguments(case, 0, Form()), sym_buffer=buffer)
        kept = first.clone()
        mega_moe(**call_arguments(make_case("a16w16", Shape(), seed=1), 0, Form()), sym_buffer=buffer)
    assert first.equal(kept)
    assert first.float().numpy().tobytes() == run(case)[0].y.tobytes()
