"""One call as the operator's host code gets it, below the Python wrapper, and the checks that it makes.

`OperatorArguments` are those of the operator's schema (op csrc, npu_mega_moe). Element types, formats and sizes are
read off the tensors as mega_moe.cpp does. What the device's own checks reject comes as RuntimeError; what they miss
goes through, and the simulated kernel shows what comes of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat, format_for_packed
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.dtypes import dtype_name, normalise_dtype
from vllm_megamoe.ops.arguments import CALL, DtypeArgument
from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call

Tensors = Sequence[Tensor] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorArguments:
    """Names as in the operator's schema; `activation_params` still has its names."""

    context: Tensor
    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    weight1: Sequence[Tensor]
    weight2: Sequence[Tensor]
    moe_expert_num: int
    ep_world_size: int
    ccl_buffer_size: int
    weight_scales1: Tensors = None
    weight_scales2: Tensors = None
    bias1: Tensors = None
    bias2: Tensors = None
    x_active_mask: Tensor | None = None
    shared_weight1: Tensors = None
    shared_weight2: Tensors = None
    shared_weight_scales1: Tensors = None
    shared_weight_scales2: Tensors = None
    shared_bias1: Tensors = None
    shared_bias2: Tensors = None
    max_recv_token_num: int = 0
    dispatch_quant_mode: int = 0
    combine_quant_mode: int = 0
    comm_alg: str = ""
    num_max_tokens_per_rank: int = 0
    activation: str = "swiglu"
    activation_clamp: float | None = None
    activation_params: Mapping[str, float] = field(default_factory=dict)
    dispatch_quant_out_dtype: DtypeArgument = None
    weight1_type: DtypeArgument = None
    weight2_type: DtypeArgument = None
    topk_weights_type: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name in _LISTS and isinstance(value, Tensor):
                raise RuntimeError(
                    f"npu_mega_moe() Expected a value of type 'List[Tensor]' for argument '{name}' but instead found "
                    f"type 'Tensor'."
                )


_LISTS = frozenset(argument.schema for argument in CALL if argument.kind in ("weights", "side"))


PACKED = (AclDtype.INT4, AclDtype.FLOAT4_E2M1)


def buffer_facts(a: OperatorArguments) -> BufferFacts:
    """What a call says about its buffer."""
    return BufferFacts(
        ep_world_size=a.ep_world_size,
        num_experts=a.moe_expert_num,
        num_max_tokens_per_rank=a.num_max_tokens_per_rank,
        num_topk=a.topk_ids.shape[1],
        hidden=a.x.shape[1],
        max_recv_token_num=a.max_recv_token_num,
        dispatch_quant_mode=a.dispatch_quant_mode,
        dispatch_quant_out_dtype=type_name(a.dispatch_quant_out_dtype),
        combine_quant_mode=a.combine_quant_mode,
        comm_alg=a.comm_alg,
        topk_weights_type=a.topk_weights_type,
        rank_num_per_server=a.ep_world_size,
    )


def call_facts(a: OperatorArguments) -> CallFacts:
    """The rest of a call."""
    routed = _weights(a.weight1, a.weight2, a.weight1_type, a.weight2_type, a.weight_scales1, a.bias1)
    shared = None
    if a.shared_weight1 and a.shared_weight2:
        # The revisions simulated here apply the routed experts' types to the shared ones.
        shared = _weights(
            a.shared_weight1,
            a.shared_weight2,
            a.weight1_type,
            a.weight2_type,
            a.shared_weight_scales1,
            a.shared_bias1,
        )
    return CallFacts(
        rows=a.x.shape[0],
        x_dtype=dtype_name(a.x.dtype),
        topk_weights_dtype=dtype_name(a.topk_weights.dtype),
        has_mask=a.x_active_mask is not None,
        routed=routed,
        shared=shared,
        activation=a.activation,
        activation_clamp=a.activation_clamp,
        activation_params=a.activation_params,
        ccl_buffer_size=a.ccl_buffer_size,
    )


def type_name(value: DtypeArgument) -> str | None:
    """ACL's name of a dtype argument in any spelling, None where it says nothing."""
    try:
        found = normalise_dtype(value, "dtype")
    except LayoutError as e:
        raise RuntimeError(str(e)) from e
    return None if found is None else found.name


def element_of(tensor: Tensor, declared: DtypeArgument) -> str:
    """ACL's name of a weight's elements: as declared, else by dtype; int32 carries INT4."""
    return type_name(declared) or ("INT4" if tensor.dtype == torch.int32 else dtype_name(tensor.dtype))


def _weights(
    weight1: Sequence[Tensor],
    weight2: Sequence[Tensor],
    type1: DtypeArgument,
    type2: DtypeArgument,
    scales: Tensors,
    biases: Tensors,
) -> WeightFacts:
    if not weight1 or not weight2:
        raise RuntimeError("weight1 and weight2 must not be empty")
    first, second = weight1[0], weight2[0]
    element1, element2 = element_of(first, type1), element_of(second, type2)
    stacked = first.dim() == 3
    return WeightFacts(
        element1=element1,
        element2=element2,
        carrier=dtype_name(first.dtype),
        format1=_format_name(first, element1),
        format2=_format_name(second, element2),
        stacked=stacked,
        count=first.shape[0] if stacked and len(weight1) == 1 else len(weight1),
        intermediate_hidden=_intermediate(second, element2),
        has_scales=bool(scales),
        has_bias=bool(biases),
    )


def _intermediate(weight2: Tensor, element: str) -> int:
    """I: the rows of a K-first second weight, the columns of an MX one."""
    if element.startswith("FLOAT8") or element == "FLOAT4_E2M1":
        return int(weight2.shape[-1]) * (2 if element == "FLOAT4_E2M1" else 1)
    return int(weight2.shape[-2]) if weight2.dim() > 1 else 0


def _format_name(tensor: Tensor, element: str) -> str:
    """As the operator sees it: 16-byte blocks of packed 4-bit elements are blocks of 32 elements."""
    found = format_of(tensor)
    if element == "INT4" and tensor.dtype == torch.int32:
        return AclFormat.FRACTAL_NZ.name  # aclnn relabels it, whatever it was
    if element in {dtype.name for dtype in PACKED}:
        try:
            return format_for_packed(found).name
        except LayoutError as e:
            raise RuntimeError(str(e)) from e
    return found.name


_ROWS_TYPES = (torch.bfloat16, torch.float16)


def check_buffer(profile: Profile, buffer: BufferFacts) -> None:
    """The range checks of a buffer's creation (op csrc, get_mega_moe_ccl_buffer_size).

    Raises:
        RuntimeError: the first one that is broken.
    """
    _raise_first(profile, broken_by_buffer(profile, buffer))


def check_call(profile: Profile, a: OperatorArguments) -> None:
    """The checks of a call: the extension's own few, then those of the tiling.

    Raises:
        RuntimeError: the first one that is broken.
    """
    if a.x.dim() != 2 or a.topk_ids.dim() != 2:
        raise RuntimeError(f"x and topk_ids must be 2D, but got {a.x.dim()}D and {a.topk_ids.dim()}D")
    if a.x.dtype not in _ROWS_TYPES:
        raise RuntimeError(f"The dtype of x must be bfloat16 or float16, but got {a.x.dtype}")
    if a.topk_ids.dtype != torch.int32:
        raise RuntimeError(f"The dtype of topk_ids must be int32, but got {a.topk_ids.dtype}")
    buffer = buffer_facts(a)
    _raise_first(profile, [*broken_by_buffer(profile, buffer), *broken_by_call(profile, buffer, call_facts(a))])


def _raise_first(profile: Profile, broken: Iterable[Broken]) -> None:
    for rule in broken:
        if not rule.silent:
            raise RuntimeError(
                f"[{profile.name} simulated] {rule.argument}={rule.value}; expected {rule.expected} ({rule.source})"
            )
