"""Weights, scales and biases: list layouts, dtypes, shapes, strides."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat, format_for_packed
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.dtypes import dtype_of
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.twin.call import PER_BYTE, Order, RawWeights, Weights, carrier, per_expert

API = "torch_api.txt, constraints table"
README = "operator_readme.txt, TensorList layouts"
MX_TYPES = (AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1)
INT_TYPES = (AclDtype.INT8, AclDtype.INT4)
_BYTES = (torch.int8, torch.uint8)
_CARRIERS: dict[AclDtype, tuple[torch.dtype, ...]] = {
    AclDtype.INT4: (torch.int8, torch.int32),
    AclDtype.FLOAT4_E2M1: (*_BYTES, torch.float4_e2m1fn_x2),
    AclDtype.FLOAT8_E5M2: (*_BYTES, torch.float8_e5m2),
    AclDtype.FLOAT8_E4M3FN: (*_BYTES, torch.float8_e4m3fn),
}


def element_of(raw: RawWeights) -> AclDtype:
    """Type of a weight's elements: as declared, else as its dtype tells; int32 carries INT4 (op csrc, GetAclDataType).

    Raises:
        OperatorError: no weight type, or a carrier that cannot hold the declared one.
    """
    dtype = raw.tensors[0].dtype
    declared = raw.declared
    argument = raw.name.removesuffix("_weights").replace("l1", "weight1").replace("l2", "weight2") + "_type"
    found = AclDtype.INT4 if dtype == torch.int32 and declared is None else dtype_of(dtype)
    if declared is not None and dtype in _CARRIERS.get(declared, ()):
        found = declared
    known = (AclDtype.BF16, AclDtype.FLOAT, *INT_TYPES, *MX_TYPES)
    if found not in known or (declared is not None and found is not declared):
        rule = "a weight type" if declared is None else f"a carrier of {argument}={declared.name}"
        remedy = (
            f"INT4 comes in int8 with {argument}=285 or in int32, FP4 in uint8 with {argument}=296; "
            "other types in their own dtype."
        )
        raise rejection(f"{raw.name}.dtype", dtype, rule, "op csrc, GetAclDataType", remedy)
    if declared is AclDtype.INT4 and dtype == torch.int32:
        # The device would read N eight times too large or too small: the type belongs to the int8 carrier.
        raise rejection(argument, "INT4", "None for an int32 carrier", "op csrc, GetAclDataType", "Drop it.")
    return found


def read_weights(raw: RawWeights, order: Order, with_bias: bool) -> Weights:
    """Check one weight argument alone and take it apart into experts.

    Raises:
        OperatorError: naming the list and what is wrong with it.
    """
    element = element_of(raw)
    shape = raw.shapes[0]
    for tensor, dims, kind in zip(raw.tensors, raw.shapes, raw.formats, strict=True):
        if (dims, kind, tensor.dtype) != (shape, raw.formats[0], raw.tensors[0].dtype):
            rule = "entries of one shape, dtype and format"
            raise rejection(raw.name, f"{list(dims)} beside {list(shape)}", rule, README, "Make them alike.")
        check_contiguous(raw.name, tensor)
    if len(shape) not in (2, 3) or (len(shape) == 3 and len(raw.tensors) != 1):
        rule = "a list of 2-D tensors, one per expert, or one 3-D stack"
        raise rejection(raw.name, f"{len(raw.tensors)} of shape {list(shape)}", rule, README, "Choose one of the two.")
    packed = PER_BYTE.get(element, 1)
    rows = shape[-2]
    columns = shape[-1] * packed * (4 if raw.tensors[0].dtype == torch.int32 else 1)
    inputs, outputs = (rows, columns) if order == "k_first" else (columns, rows)
    stored = per_expert(raw.tensors, raw.is_stacked)
    return Weights(
        raw.name,
        element,
        _operator_format(raw, packed),
        order,
        inputs,
        outputs,
        tuple(carrier(tensor, element) for tensor in stored),
        _read_scales(raw, element, inputs, outputs),
        _read_biases(raw, outputs, with_bias),
        tuple(raw.tensors),
    )


def check_contiguous(name: str, tensor: Tensor) -> None:
    """Weights, scales and biases must not be strided (torch_api.txt, constraints table)."""
    if not tensor.is_contiguous():
        raise rejection(f"{name}.stride()", tensor.stride(), "contiguous", API, "Pass .contiguous().")


def _operator_format(raw: RawWeights, packed: int) -> AclFormat:
    try:
        return format_for_packed(raw.formats[0]) if packed == 2 else raw.formats[0]
    except LayoutError as e:
        raise rejection(raw.name, raw.formats[0].name, str(e), "op csrc mega_moe.cpp", "Cast it anew.") from e


def _read_scales(raw: RawWeights, element: AclDtype, inputs: int, outputs: int) -> tuple[Tensor, ...]:
    name = f"{raw.name}_sf"
    if element in (AclDtype.BF16, AclDtype.FLOAT):
        if raw.scales:
            raise rejection(name, _count(raw.scales), "None for BF16 weights", API, "Drop it.")
        return ()
    if element in INT_TYPES:
        dtypes: tuple[torch.dtype, ...] = (torch.uint64, torch.int64)
        shape: tuple[int, ...] = (outputs,)
        remedy = "Take scale.view(torch.int32).to(torch.int64).view(torch.uint64) of the float32 scale."
    else:
        dtypes, shape = (torch.float8_e8m0fnu, torch.uint8), (outputs, -(-inputs // 64), 2)
        remedy = "Pad the groups of 32 to an even number and take .view(torch.float8_e8m0fnu)."
    scales = _read_side(raw, name, raw.scales, dtypes, shape, remedy)
    return scales if element in INT_TYPES else tuple(scale.view(torch.uint8) for scale in scales)


def _read_biases(raw: RawWeights, outputs: int, with_bias: bool) -> tuple[Tensor, ...]:
    name = raw.name.replace("_weights", "_bias")
    if not with_bias:
        if raw.biases:
            rule = "None unless the weights are INT4"
            raise rejection(name, _count(raw.biases), rule, API, "Drop it.")
        return ()
    remedy = "Give 8 * sum over K of the weight's integers, times its scale, per output channel."
    return _read_side(raw, name, raw.biases, (torch.float32,), (outputs,), remedy)


def _read_side(
    raw: RawWeights,
    name: str,
    tensors: Sequence[Tensor],
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int, ...],
    remedy: str,
) -> tuple[Tensor, ...]:
    """A list that goes with the weights: same list layout, one entry of `shape` per expert."""
    if raw.is_stacked:
        shape = (raw.count, *shape)
    if len(tensors) != len(raw.tensors):
        rule = f"as many tensors as {raw.name}, {len(raw.tensors)}"
        raise rejection(name, _count(tensors), rule, README, remedy)
    for tensor in tensors:
        if tensor.dtype not in dtypes:
            raise rejection(f"{name}.dtype", tensor.dtype, dtypes[0], API, remedy)
        if tuple(tensor.shape) != shape:
            raise rejection(f"{name}.shape", list(tensor.shape), list(shape), API, remedy)
        check_contiguous(name, tensor)
    return per_expert(tensors, raw.is_stacked)


def _count(tensors: Sequence[Tensor]) -> str:
    return f"{len(tensors)} tensors" if tensors else "None"
