"""A call of the operator's own package as plain facts: types, formats and sizes read off the tensors (op csrc)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclFormat, normalise_dtype
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.ops.twin.refusal import refusal
from vllm_megamoe.ops.type_name import type_name
from vllm_megamoe.profiles.call_facts import CallFacts, WeightFacts

_WEIGHTS = ("l1_weights", "l2_weights")
_PLAIN = ("BF16", "FLOAT")
_PACKED = ("INT4", "FLOAT4_E2M1")
_K_LAST = ("FLOAT8_E5M2", "FLOAT8_E4M3FN", "FLOAT4_E2M1")
_LISTS = "torch_api.txt, constraints table; operator_readme.txt, TensorList layouts"


def tensor_call_facts(
    x: Tensor, topk_weights: Tensor, weights: Sequence[Sequence[Tensor]], arguments: Mapping[str, Any], window: int
) -> CallFacts:
    """Facts of a call.

    Args:
        x, topk_weights: of the call.
        weights: l1_weights and l2_weights as lists.
        arguments: the other arguments of `mega_moe` by name, lists as lists.
        window: ccl_buffer_size of the buffer.

    Raises:
        OperatorError: a list of weights is missing or holds no matrices, or shared experts have a bias.
    """
    for name in ("shared_l1_bias", "shared_l2_bias"):
        if arguments[name]:
            source = "operator_readme.txt, sharedBias1 and sharedBias2"
            raise refusal(name, "given", "None: shared experts take no bias", source, "Pass None.")
    shared = None
    lists = (arguments["shared_l1_weights"], arguments["shared_l2_weights"])
    if lists[0] or lists[1]:
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
        activation_params=dict(arguments["activation_params"] or {}),  # a copy: the facts outlive the call
        ccl_buffer_size=window,
    )


def _weight_facts(
    weights: Sequence[Sequence[Tensor] | None], arguments: Mapping[str, Any], prefix: str, type1: str, type2: str
) -> WeightFacts:
    one, other = (_matrices(f"{prefix}{name}", held) for name, held in zip(_WEIGHTS, weights, strict=True))
    first, second = one[0], other[0]
    element1, element2 = _element(first, arguments[type1]), _element(second, arguments[type2])
    packed = 2 if element2 == "FLOAT4_E2M1" else 1
    width = second.shape[-1] * packed if element2 in _K_LAST else second.shape[-2]
    return WeightFacts(
        element1=element1,
        element2=element2,
        carrier=type_name(first.dtype) if first.dtype == torch.int32 else element1,
        format1=_format(first, element1),
        format2=_format(second, element2),
        stacked=len(one) == 1 and first.dim() == 3,
        count=first.shape[0] if first.dim() == 3 else len(one),
        intermediate_hidden=int(width),
        has_scales=_are_given(arguments, f"{prefix}l1_weights_sf", f"{prefix}l2_weights_sf", element1 not in _PLAIN),
        has_bias=_are_given(arguments, f"{prefix}l1_bias", f"{prefix}l2_bias", element1 == "INT4"),
    )


def _matrices(name: str, tensors: Sequence[Tensor] | None) -> Sequence[Tensor]:
    if not tensors:
        raise refusal(name, "no tensors", "the experts of this rank", _LISTS, "Pass them.")
    if tensors[0].dim() not in (2, 3):
        rule = "a list of 2-D tensors, one per expert, or one 3-D stack"
        raise refusal(name, f"a {tensors[0].dim()}-D tensor", rule, _LISTS, "Choose one of the two.")
    return tensors


def _are_given(arguments: Mapping[str, Any], first: str, second: str, needed: bool) -> bool:
    """Both where they are needed; where they are not, one alone is one too many."""
    given = bool(arguments[first]), bool(arguments[second])
    return all(given) if needed else any(given)


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
