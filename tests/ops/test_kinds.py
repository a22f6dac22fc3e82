"""Integers are integers, numbers are numbers, tensors are tensors: whatever else comes is rejected by its name."""

from typing import Any

import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe
from vllm_megamoe.ops.arguments import CREATE

REMEDY = r"; expected .+\. [A-Z].*\.$"
INTEGERS = [argument.name for argument in CREATE if argument.kind == "whole"]


def buffer_of(use_case: str = "a8w8-int", **changes: Any) -> SymmBuffer:
    return get_symm_buffer_for_mega_moe(None, **buffer_arguments(make_case(use_case, Shape())) | changes)


def call(use_case: str, buffer: SymmBuffer | None = None, **changes: Any) -> Tensor:
    given = call_arguments(make_case(use_case, Shape()), 0, Form()) | changes
    return mega_moe(**given, sym_buffer=buffer or buffer_of(use_case))[0]


@pytest.mark.parametrize("value", ["4", 4.0, None, True, [4], torch.tensor(4)], ids=repr)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_creation(name: str, value: Any) -> None:
    with pytest.raises(OperatorError, match=rf"(?s)^{name}=.*; expected an integer") as info:
        buffer_of(**{name: value})
    assert info.match(r"Pass a Python int such as")


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_were_changed_since(name: str) -> None:
    """Attributes are read at every call."""
    buffer = buffer_of()
    setattr(buffer, name, float(getattr(buffer, name)))
    with pytest.raises(OperatorError, match=rf"^{name}=\d+\.0; expected an integer"):
        call("a8w8-int", buffer)


@pytest.mark.parametrize("value", [None, 0, b""], ids=repr)
def test_texts_of_creation(value: Any) -> None:
    with pytest.raises(OperatorError, match=r"^comm_alg=.*; expected a string"):
        buffer_of(comm_alg=value)


@pytest.mark.parametrize("value", [True, "int8", 7, -1, 2.0, torch.bool, torch.int32], ids=repr)
@pytest.mark.parametrize(
    "name",
    ["weight1_type", "weight2_type", "shared_weight1_type", "shared_weight2_type", "shared_expert_quant_out_dtype"],
)
def test_types_of_a_call(name: str, value: Any) -> None:
    with pytest.raises(OperatorError, match=rf"^{name}=.*; expected None, a torch dtype that the operator has") as info:
        call("a8w8-int", **{name: value})
    assert info.match(r"258 for INT8")


@pytest.mark.parametrize("value", [True, "int8", 7, 2.0, torch.bool], ids=repr)
def test_types_of_creation(value: Any) -> None:
    with pytest.raises(OperatorError, match=r"^dispatch_quant_out_dtype=.*; expected None, a torch dtype"):
        buffer_of(dispatch_quant_out_dtype=value)


@pytest.mark.parametrize("value", [None, 7, "x", [torch.zeros(5, 96)]], ids=repr)
@pytest.mark.parametrize("name", ["x", "topk_ids", "topk_weights"])
def test_tensors(name: str, value: Any) -> None:
    with pytest.raises(OperatorError, match=rf"(?s)^{name}=.*; expected a tensor in rows") as info:
        call("a8w8-int", **{name: value})
    assert info.match("(?s)" + REMEDY)


@pytest.mark.parametrize("name", ["x_active_mask", "scales"])
def test_optional_tensors(name: str) -> None:
    with pytest.raises(OperatorError, match=rf"^{name}=7; expected a tensor in rows"):
        call("a8w8-int", **{name: 7})


@pytest.mark.parametrize("name", ["x", "x_active_mask"])
def test_tensors_in_blocks_are_weights_only(name: str) -> None:
    blocks = format_cast(torch.zeros(16, 32, dtype=torch.bfloat16), AclFormat.FRACTAL_NZ)
    with pytest.raises(OperatorError, match=rf"^{name}=a FormattedTensor; expected a tensor in rows"):
        call("a8w8-int", **{name: blocks})


LISTS = ["l1_weights", "l2_weights", "l1_weights_sf", "l2_bias", "shared_l1_weights", "shared_l2_weights_sf"]


@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str) -> None:
    for value, words in (
        (7, rf"{name}=7; expected a list of tensors"),
        ({0: torch.zeros(1)}, rf"{name}=a dict; expected a list of tensors"),
        ([None], rf"{name}\[0\]=None; expected a tensor"),
        ([torch.zeros(2, 2), "w"], rf"{name}\[1\]='w'; expected a tensor"),
    ):
        with pytest.raises(OperatorError, match=f"^{words}"):
            call("a8w4-int", **{name: value})


@pytest.mark.parametrize("name", ["l1_weights", "l2_weights"])
def test_weights_are_needed(name: str) -> None:
    with pytest.raises(OperatorError, match=rf"^{name}=None; expected a list of tensors"):
        call("a8w8-int", **{name: None})
    with pytest.raises(OperatorError, match=rf"^{name}=no tensors; expected the experts of this rank"):
        call("a8w8-int", **{name: []})


def test_scales_in_blocks() -> None:
    blocks = format_cast(torch.zeros(16, 32, dtype=torch.int8), AclFormat.FRACTAL_NZ)
    with pytest.raises(OperatorError, match=r"^l1_weights_sf\[0\]=a FormattedTensor; expected a tensor in rows"):
        call("a8w8-int", l1_weights_sf=[blocks])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": 7}, "activation=7; expected one of swiglu"),
        ({"activation": None}, "activation=None; expected one of swiglu"),
        ({"activation_clamp": "7"}, "activation_clamp='7'; expected a number"),
        ({"activation_clamp": [7.0]}, r"activation_clamp=\[7.0\]; expected a number"),
        ({"activation_clamp": True}, "activation_clamp=True; expected a number"),
        ({"activation_clamp": torch.tensor(7.0)}, "activation_clamp=tensor.*; expected a number"),
        ({"activation_params": 7.0}, "activation_params=7.0; expected None, a mapping"),
        ({"activation": "situglu", "activation_clamp": 7.0}, "activation_clamp=7.0; expected None: situglu"),
        ({"activation": "swigluoai", "activation_params": {"alpha": 1e39}}, "alpha.*1e.39; expected a finite float32"),
        ({"activation": "swigluoai", "activation_params": {"alpha": "1"}}, "alpha.*'1'; expected a number"),
        ({"activation": "swigluoai", "activation_params": [7.0, 1.7]}, r"expected \[\] or \[clamp, alpha, beta\]"),
    ],
    ids=str,
)
def test_activations(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        call("a8w8-int", **options)


def test_the_list_form_of_the_document() -> None:
    # operator_readme.txt, activation_params: [clamp, alpha, beta] for swigluoai
    listed = call("a16w16", activation="swigluoai", activation_params=[7.0, 1.5, 0.25])
    named = {"activation_clamp": 7.0, "activation_params": {"alpha": 1.5, "beta": 0.25}}
    assert listed.equal(call("a16w16", activation="swigluoai", **named))


@pytest.mark.parametrize("width", [0, 64, 128])
def test_intermediate_hidden_is_0_or_i_or_2i(width: int) -> None:
    # torch_api.txt: the 950 example passes 0, the A2/A3 one I, and its 950 constraints call 2I by that name
    assert call("a8w8-int", buffer_of(intermediate_hidden=width)).equal(call("a8w8-int"))


@pytest.mark.parametrize("width", [3 * 64 + 8, 32, 1, 256])
def test_another_intermediate_hidden_is_rejected(width: int) -> None:
    words = rf"^intermediate_hidden={width}; expected 0, I=64 or 2I=128 of this call's weights"
    with pytest.raises(OperatorError, match=words):
        call("a8w8-int", buffer_of(intermediate_hidden=width))


@pytest.mark.parametrize(
    ("use_case", "lies"),
    [("a16w16", "inputs"), ("a8w8-int", "inputs"), ("a8w8-fp", "outputs")],
)
@pytest.mark.parametrize("name", ["l1_weights", "l2_weights"])
def test_weights_the_other_way_round(name: str, use_case: str, lies: str) -> None:
    given = call_arguments(make_case(use_case, Shape()), 0, Form())[name]
    with pytest.raises(OperatorError, match=rf"^{name}=K=\d+, N=\d+; expected ") as info:
        call(use_case, **{name: [weight.t().contiguous() for weight in given]})
    both = ["[hidden, 2 * intermediate]", "[2 * intermediate, hidden]"]
    if name == "l2_weights":
        both = ["[intermediate, hidden]", "[hidden, intermediate]"]
    text = str(info.value)
    assert all(orientation in text for orientation in both)
    assert f"weights lie {lies} first" in text
    assert "pass weight.t().contiguous()" in text


def test_weights_of_another_width_are_not_told_to_turn() -> None:
    given = call_arguments(make_case("a8w8-int", Shape()), 0, Form())["l1_weights"]
    with pytest.raises(OperatorError, match=r"^l1_weights=K=80, N=128; expected .*hidden=96") as info:
        call("a8w8-int", l1_weights=[weight[:80].contiguous() for weight in given])
    assert "other way round" not in str(info.value)
