"""The experts of a call, routed or shared, read and checked: use case, sizes, carriers, scales and biases.

A weight list becomes one matrix of stored bytes per expert, with its logical size, scales and bias (`call.Weights`).
The checks go from the whole to its parts, so that the first thing that is wrong is what the message names.
"""

import torch

from vllm_megamoe.acl import AclDtype, AclFormat, format_for_packed
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.dtypes import dtype_of
from vllm_megamoe.ops.arguments import dtype_of_argument
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.facts import check_orientation, check_sides
from vllm_megamoe.ops.given import MX_TYPES, PER_BYTE, Given, GivenWeights
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.twin.call import Experts, PerExpert, Weights
from vllm_megamoe.ops.twin.families import ELEM_OF
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import find_profile

LISTS = "operator_readme.txt, TensorList layouts"
TABLES = "operator_readme.txt, use case tables"
INT_TYPES = (AclDtype.INT8, AclDtype.INT4)
FLOATS = (AclDtype.BF16, AclDtype.FLOAT)
MX_PAIRS = {
    AclDtype.FLOAT8_E5M2: (AclDtype.FLOAT8_E5M2,),
    AclDtype.FLOAT8_E4M3FN: (AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1),
    AclDtype.FLOAT4_E2M1: (AclDtype.FLOAT4_E2M1,),
}
"""Weight types that each type of dispatched rows multiplies (A8W8-FP, A8W4-FP, A4W4-FP)."""

_BYTES = (torch.int8, torch.uint8)
_CARRIERS: dict[AclDtype, tuple[torch.dtype, ...]] = {
    AclDtype.INT4: (torch.int8, torch.int32),
    AclDtype.FLOAT4_E2M1: (*_BYTES, torch.float4_e2m1fn_x2),
    AclDtype.FLOAT8_E5M2: (*_BYTES, torch.float8_e5m2),
    AclDtype.FLOAT8_E4M3FN: (*_BYTES, torch.float8_e4m3fn),
}


def out_type(buffer: SymmBuffer) -> AclDtype | None:
    """`dispatch_quant_out_dtype` in any spelling."""
    found: AclDtype | None = dtype_of_argument("dispatch_quant_out_dtype", buffer.dispatch_quant_out_dtype)
    return found


def read_routed(given: Given, buffer: SymmBuffer) -> Experts:
    """The routed experts, one of the six use cases.

    Raises:
        OperatorError: missing, of another number, size or type than the buffer's use case has.
    """
    return _read(given.l1, given.l2, buffer, out_type(buffer), buffer.experts_per_rank)


def read_shared(given: Given, buffer: SymmBuffer) -> Experts | None:
    """The shared experts, None when there are none; they may have another type than the routed ones.

    Raises:
        OperatorError: see `read_routed`; more than four, or another list layout than the routed ones.
    """
    l1, l2, routed_out = given.shared_l1, given.shared_l2, out_type(buffer)
    if not l1.tensors and not l2.tensors:
        return None
    out = given.shared_out if given.shared_out is not None else routed_out
    if out is not routed_out and out is not None and buffer.dispatch_quant_mode != 4:
        name = "shared_expert_quant_out_dtype"
        rule = "None or the buffer's dispatch_quant_out_dtype unless dispatch_quant_mode is 4"
        raise rejection(name, out.name, rule, "operator_readme.txt, sharedExpertQuantOutDtype", f"Pass {name}=None.")
    if l1.tensors and _element_of(l1) is AclDtype.INT4:
        rule = "no INT4, which needs a bias, which shared experts do not take"
        remedy = "Pass INT8 shared experts, or add them outside of the operator."
        raise rejection("shared_l1_weights", "INT4", rule, "operator_readme.txt, sharedBias1", remedy)
    experts = _read(l1, l2, buffer, out, None)
    most = limits_of(find_profile("none")).max_shared_experts
    if not 1 <= experts.l1.count <= most.value:
        rule = f"0 to {most.value} experts"
        remedy = f"Use fewer: {most.value} at most, the others outside of the operator."
        raise rejection("shared_l1_weights", f"{experts.l1.count} experts", rule, most.source, remedy)
    if l1.is_stacked != given.l1.is_stacked:
        raise _other_layout("shared_l1_weights", "l1_weights")
    return experts


def _other_layout(name: str, first: str) -> Exception:
    rule = f"the list layout of {first} (per expert, or stacked)"
    return rejection(name, "the other layout", rule, LISTS, f"Stack both with [torch.stack({name})], or neither.")


def _read(l1: GivenWeights, l2: GivenWeights, buffer: SymmBuffer, out: AclDtype | None, count: int | None) -> Experts:
    for weights in (l1, l2):
        weights.check_list()
    if l1.is_stacked != l2.is_stacked:
        raise _other_layout(l2.name, l1.name)
    element, other = _element_of(l1), _element_of(l2)
    _check_use_case(l1.name, element, buffer.dispatch_quant_mode, out)
    if count is not None and l1.count != count:
        rule = f"{count} experts: num_experts / ranks of the buffer"
        remedy = "Pass all of this rank's experts, and no others."
        raise rejection(l1.name, f"{l1.count} experts", rule, TABLES, remedy)
    if l2.count != l1.count:
        remedy = f"Pass one for each of the {l1.count} experts."
        raise rejection(l2.name, f"{l2.count} experts", f"{l1.count}, as {l1.name}", TABLES, remedy)
    if other is not element:
        remedy = f"Convert {l2.name} to {element.name}."
        raise rejection(l2.name, other.name, f"{element.name}, as {l1.name}", TABLES, remedy)
    check_orientation(l1, l2, buffer.hidden)
    rows = ELEM_OF[out] if element in MX_TYPES and out is not None else None
    return Experts(_read_weights(l1, element), _read_weights(l2, element), rows)


def _check_use_case(name: str, element: AclDtype, mode: int, out: AclDtype | None) -> None:
    """The weight type must belong to the buffer's dispatch."""
    if mode == 2:
        allowed: tuple[AclDtype, ...] = INT_TYPES
    elif out in MX_PAIRS:
        allowed = MX_PAIRS[out]
    else:
        allowed = FLOATS
    if element not in allowed:
        expected = " or ".join(dtype.name for dtype in allowed)
        dispatch = f"dispatch_quant_mode={mode}, dispatch_quant_out_dtype={out.name if out is not None else None}"
        remedy = f"Convert the weights to {allowed[0].name}, or make a buffer for {element.name} weights."
        raise rejection(name, element.name, f"{expected} with {dispatch}", TABLES, remedy)


def _element_of(given: GivenWeights) -> AclDtype:
    """Type of a weight's elements, if its carrier can hold them (op csrc, GetAclDataType)."""
    dtype, declared = given.tensors[0].dtype, given.declared
    argument = given.name.removesuffix("_weights").replace("l1", "weight1").replace("l2", "weight2") + "_type"
    found = AclDtype.INT4 if dtype == torch.int32 and declared is None else dtype_of(dtype)
    if declared is not None and dtype in _CARRIERS.get(declared, ()):
        found = declared
    known = (*FLOATS, *INT_TYPES, *MX_TYPES)
    if found not in known or (declared is not None and found is not declared):
        rule = "a weight type" if declared is None else f"a carrier of {argument}={declared.name}"
        remedy = (
            f"INT4 comes in int8 with {argument}={AclDtype.INT4.code} or in int32, FP4 in uint8 with "
            f"{argument}={AclDtype.FLOAT4_E2M1.code}; other types in their own dtype."
        )
        raise rejection(f"{given.name}.dtype", dtype, rule, "op csrc, GetAclDataType", remedy)
    if declared is AclDtype.INT4 and dtype == torch.int32:
        # The device would read N eight times too large or too small: the type belongs to the int8 carrier.
        remedy = f"Drop {argument} with an int32 carrier, or pass the int8 one: weight.view(torch.int8)."
        raise rejection(argument, "INT4", "None for an int32 carrier", "op csrc, GetAclDataType", remedy)
    return found


def _read_weights(given: GivenWeights, element: AclDtype) -> Weights:
    """One weight argument taken apart into experts."""
    check_sides(given)
    inputs, outputs = given.inputs_outputs
    return Weights(
        given.name,
        element,
        _operator_format(given, PER_BYTE.get(element, 1)),
        given.order,
        inputs,
        outputs,
        PerExpert(given.tensors, given.is_stacked, _carrier(element)),
        PerExpert(given.scales, given.is_stacked, None if element in INT_TYPES else torch.uint8),
        PerExpert(given.biases, given.is_stacked),
        given.tensors,
    )


def _carrier(element: AclDtype) -> torch.dtype | None:
    """What torch computes with: int8 for integers, uint8 for MX codes, None for floats as they are."""
    if element in INT_TYPES:
        return torch.int8
    return None if element in FLOATS else torch.uint8


def _operator_format(given: GivenWeights, packed: int) -> AclFormat:
    try:
        return format_for_packed(given.formats[0]) if packed == 2 else given.formats[0]
    except LayoutError as e:
        remedy = "Cast it anew with format_cast(.., AclFormat.FRACTAL_NZ_C0_16)."
        raise rejection(given.name, given.formats[0].name, str(e), "op csrc mega_moe.cpp", remedy) from e
