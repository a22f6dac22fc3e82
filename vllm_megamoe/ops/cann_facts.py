"""A call of the operator's own package as plain facts: types, formats and sizes read off the tensors (op csrc)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclFormat, normalise_dtype
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.ops.type_name import type_name
from vllm_megamoe.profiles.call_facts import CallFacts, WeightFacts

_PACKED = ("INT4", "FLOAT4_E2M1")
_K_LAST = ("FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT4_E2M1")


def tensor_call_facts(
    x: Tensor, topk_weights: Tensor, weights: Sequence[Sequence[Tensor]], arguments: Mapping[str, Any], window: int
) -> CallFacts:
    """Facts of a call.

    Args:
        x, topk_weights: of the call.
        weights: l1_weights and l2_weights as lists.
        arguments: the other arguments of `mega_moe` by name, lists as lists.
        window: ccl_buffer_size of the buffer.
    """
    shared = None
    if arguments["shared_l1_weights"]:
        lists = (arguments["shared_l1_weights"], arguments["shared_l2_weights"] or ())
        shared = _weight_facts(lists, arguments, "shared_", "shared_weight1_type", "shared_weight2_type")
    out = normalise_dtype(arguments["shared_expert_quant_out_dtype"], "shared_expert_quant_out_dtype")
    return CallFacts(
        rows=x.shape[0],
        x_dtype=type_name(x.dtype),
        topk_weights_dtype=type_name(topk_weights.dtype),
        has_mask=arguments["x_active_mask"] is not None,
        has_scales=arguments["scales"] is not None,
        routed=_weight_facts(weights, arguments, "", "weight1_type", "weight2_type"),
        shared=shared,
        shared_out_dtype=None if out is None else out.name,
        activation=arguments["activation"],
        activation_clamp=arguments["activation_clamp"],
        activation_params=arguments["activation_params"] or {},
        ccl_buffer_size=window,
    )


def _weight_facts(
    weights: Sequence[Sequence[Tensor]], arguments: Mapping[str, Any], prefix: str, type1: str, type2: str
) -> WeightFacts:
    first, second = weights[0][0], weights[1][0]
    element1, element2 = _element(first, arguments[type1]), _element(second, arguments[type2])
    packed = 2 if element2 == "FLOAT4_E2M1" else 1
    width = second.shape[-1] * packed if element2 in _K_LAST else second.shape[-2]
    return WeightFacts(
        element1=element1,
        element2=element2,
        carrier=type_name(first.dtype) if first.dtype == torch.int32 else element1,
        format1=_format(first, element1),
        format2=_format(second, element2),
        stacked=len(weights[0]) == 1 and first.dim() == 3,
        count=first.shape[0] if first.dim() == 3 else len(weights[0]),
        intermediate_hidden=int(width),
        has_scales=bool(arguments[f"{prefix}l1_weights_sf"]) and bool(arguments[f"{prefix}l2_weights_sf"]),
        has_bias=bool(arguments[f"{prefix}l1_bias"]) and bool(arguments[f"{prefix}l2_bias"]),
    )


def _element(tensor: Tensor, declared: Any) -> str:
    found = normalise_dtype(declared, "weight type")
    if found is not None:
        return found.name
    return "INT4" if tensor.dtype == torch.int32 else type_name(tensor.dtype)


def _format(tensor: Tensor, element: str) -> str:
    """As the operator sees it: blocks of 16 bytes are blocks of 32 packed elements."""
    found = format_of(tensor)
    if element in _PACKED and found is AclFormat.FRACTAL_NZ_C0_16:
        return AclFormat.FRACTAL_NZ_C0_32.name
    # 16-byte-block names of other ids stay as they are, so that a rule can show them.
    return found.name
