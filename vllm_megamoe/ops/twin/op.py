"""The one custom op: opaque to torch.compile, with all that depends on token count, rank or buffer inside.

From the public arguments to the custom op's: lists, stored bytes beside logical shapes, plain numbers.

This part is traced by torch.compile, so it looks at nothing but types; every other check lies inside the op.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.formatted import FormattedTensor, inner
from vllm_megamoe.ops.buffer import SymmBuffer, buffer_of
from vllm_megamoe.ops.twin.call import code_of
from vllm_megamoe.ops.twin.run import run_call

PACKED_FP4 = (torch.uint8, torch.float4_e2m1fn_x2)


@torch.library.custom_op("vllm_megamoe::mega_moe", mutates_args=("topk_ids",))
def mega_moe_op(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1: Sequence[Tensor],
    l2: Sequence[Tensor],
    shared_l1: Sequence[Tensor],
    shared_l2: Sequence[Tensor],
    l1_sf: Sequence[Tensor],
    l2_sf: Sequence[Tensor],
    l1_bias: Sequence[Tensor],
    l2_bias: Sequence[Tensor],
    shared_l1_sf: Sequence[Tensor],
    shared_l2_sf: Sequence[Tensor],
    x_active_mask: Tensor | None,
    scales: Tensor | None,
    formats: Sequence[int],
    shapes: Sequence[int],
    types: Sequence[int],
    activation: str,
    activation_clamp: float | None,
    param_keys: str,
    param_values: Sequence[float],
    handle: str,
) -> tuple[Tensor, Tensor]:
    """See `mega_moe`; weights come as stored bytes, their formats and logical shapes beside them.

    Args:
        formats: AclFormat of each weight tensor, the four lists one after the other.
        shapes: number of dimensions and dimensions of each weight tensor, in the same order.
        types: ACL dtype numbers, -1 for none: weight1, weight2, shared weight1, shared weight2, shared dispatch.
        param_keys, param_values: activation_params.
        handle: of the SymmBuffer.
    """
    return run_call(
        buffer_of(handle),
        x,
        topk_ids,
        topk_weights,
        x_active_mask,
        scales,
        ((l1, l2, l1_sf, l2_sf, l1_bias, l2_bias), (shared_l1, shared_l2, shared_l1_sf, shared_l2_sf, (), ())),
        formats,
        shapes,
        types,
        (activation, activation_clamp, dict(zip(filter(None, param_keys.split(",")), param_values, strict=True))),
    )


@mega_moe_op.register_fake
def _(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1: Sequence[Tensor],
    l2: Sequence[Tensor],
    shared_l1: Sequence[Tensor],
    shared_l2: Sequence[Tensor],
    l1_sf: Sequence[Tensor],
    l2_sf: Sequence[Tensor],
    l1_bias: Sequence[Tensor],
    l2_bias: Sequence[Tensor],
    shared_l1_sf: Sequence[Tensor],
    shared_l2_sf: Sequence[Tensor],
    x_active_mask: Tensor | None,
    scales: Tensor | None,
    formats: Sequence[int],
    shapes: Sequence[int],
    types: Sequence[int],
    activation: str,
    activation_clamp: float | None,
    param_keys: str,
    param_values: Sequence[float],
    handle: str,
) -> tuple[Tensor, Tensor]:
    hidden = x.shape[1] * 2 if x.dtype in PACKED_FP4 else x.shape[1]
    dtype = torch.float32 if x.dtype == torch.float32 else torch.bfloat16
    y = x.new_empty((x.shape[0], hidden), dtype=dtype)
    return y, x.new_empty((buffer_of(handle).experts_per_rank,), dtype=torch.int32)


Weights = Sequence[Tensor] | Tensor
ND = 2
SHARED_BIASES = ("shared_l1_bias", "shared_l2_bias")
WEIGHTS = ("l1_weights", "l2_weights", "shared_l1_weights", "shared_l2_weights")
SIDE_LISTS = ("l1_weights_sf", "l2_weights_sf", "l1_bias", "l2_bias", "shared_l1_weights_sf", "shared_l2_weights_sf")
TYPES = (
    "weight1_type",
    "weight2_type",
    "shared_weight1_type",
    "shared_weight2_type",
    "shared_expert_quant_out_dtype",
)


def call_twin(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1_weights: Weights,
    l2_weights: Weights,
    sym_buffer: SymmBuffer,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Run the twin's custom op on the arguments of `mega_moe`."""
    for name in SHARED_BIASES:
        if arguments[name] is not None:
            raise OperatorError(
                f"{name}={type(arguments[name]).__name__}; expected None, shared experts take no bias "
                "(operator_readme.txt, sharedBias1 and sharedBias2). Pass None."
            )
    arguments["l1_weights"], arguments["l2_weights"] = l1_weights, l2_weights
    stored: list[list[Tensor]] = []
    formats: list[int] = []
    shapes: list[int] = []
    for name in WEIGHTS:
        tensors = as_list(name, arguments[name])
        stored.append([inner(tensor) for tensor in tensors])
        for tensor in tensors:
            formats.append(_format(tensor))
            shapes.extend((len(tensor.shape), *tensor.shape))
    sides = [[_plain(name, tensor) for tensor in as_list(name, arguments[name])] for name in SIDE_LISTS]
    keys, values = _parameters(arguments["activation_params"])
    result: tuple[Tensor, Tensor] = mega_moe_op(
        x,
        topk_ids,
        topk_weights,
        *stored,
        *sides,
        arguments["x_active_mask"],
        arguments["scales"],
        formats,
        shapes,
        [code_of(name, arguments[name]) for name in TYPES],
        arguments["activation"],
        None if arguments["activation_clamp"] is None else float(arguments["activation_clamp"]),
        keys,
        values,
        sym_buffer.handle,
    )
    return result


def as_list(name: str, value: Weights | None) -> list[Tensor]:
    """None, a tensor or a sequence of tensors as a list."""
    if value is None:
        return []
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise OperatorError(f"mega_moe: {name} is a {type(value).__name__}; expected a list of tensors, or one stack.")
    for tensor in value:
        if not isinstance(tensor, Tensor):
            raise OperatorError(f"mega_moe: {name} holds a {type(tensor).__name__}; expected tensors only.")
    return list(value)


def _format(tensor: Tensor) -> int:
    return int(tensor.acl_format) if isinstance(tensor, FormattedTensor) else ND


def _plain(name: str, tensor: Tensor) -> Tensor:
    if isinstance(tensor, FormattedTensor):
        raise OperatorError(f"mega_moe: {name} has a block format; scales and biases must be ND.")
    return tensor


def _parameters(params: Mapping[str, float] | None) -> tuple[str, list[float]]:
    """A mapping as a string of its keys and a list of its values: a custom op takes no mappings."""
    if params is None:
        return "", []
    return ",".join(params), [float(value) for value in params.values()]
