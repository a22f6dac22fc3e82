"""A call of the operator's own package as plain facts: types, formats and sizes read off the tensors (op csrc).

The profile's rules before the operator's own package is called: from metadata of the tensors, no device is asked.

They apply when a profile is set. What the package rejects anyway comes here with a remedy, what the device gets wrong
without a word is rejected at all.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.dtypes import normalise_dtype
from vllm_megamoe.ops.rejection import is_capturing, rejection, type_name
from vllm_megamoe.ops.settings import Settings, active_settings
from vllm_megamoe.ops.twin.checks.profile import raise_broken
from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile, find_profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call

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
            raise rejection(name, "given", "None: shared experts take no bias", source, "Pass None.")
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
        raise rejection(name, "no tensors", "the experts of this rank", _LISTS, "Pass them.")
    if tensors[0].dim() not in (2, 3):
        rule = "a list of 2-D tensors, one per expert, or one 3-D stack"
        raise rejection(name, f"a {tensors[0].dim()}-D tensor", rule, _LISTS, "Choose one of the two.")
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


_SIZES = ("num_experts", "num_max_tokens_per_rank", "num_topk", "hidden")
_MODES = (
    "max_recv_token_num",
    "dispatch_quant_mode",
    "combine_quant_mode",
    "comm_alg",
    "topk_weights_type",
    "combine_comm_mode",
)


@dataclass(slots=True)
class _Communicator:
    """Buffers of one process group: how many were made, and the configuration of the first."""

    made: int = 0
    first: BufferFacts | None = None


_settings: "weakref.WeakKeyDictionary[Any, Settings]" = weakref.WeakKeyDictionary()
"""The settings that each buffer was created with; the package's own buffer has no place for them."""

_communicators: "weakref.WeakKeyDictionary[Any, _Communicator]" = weakref.WeakKeyDictionary()


@contextmanager
def checked_creation(group: Any, sizes: tuple[int, ...], arguments: Mapping[str, Any]) -> Iterator[None]:
    """Reject a creation that the profile's product does not take; remember it when the block has succeeded.

    Buffers that were made without a profile are not counted.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    profile = _profile()
    if profile.product == "none":
        yield
        return
    communicator = _communicators.setdefault(group, _Communicator())
    given = dict(zip(_SIZES, sizes, strict=False)) | {name: arguments[name] for name in _MODES}
    facts = BufferFacts(
        ep_world_size=group.size(),
        dispatch_quant_out_dtype=_name(arguments["dispatch_quant_out_dtype"]),
        buffers_before=communicator.made,
        capturing=is_capturing(),
        earlier=communicator.first,
        **given,
    )
    raise_broken(broken_by_buffer(profile, facts))
    yield
    communicator.made += 1
    communicator.first = communicator.first or replace(facts, capturing=False)


def check_call(
    x: Tensor, topk_weights: Tensor, weights: Sequence[Sequence[Tensor]], sym_buffer: Any, arguments: Mapping[str, Any]
) -> None:
    """Reject a call that the profile's product does not take.

    Args:
        x, topk_weights, sym_buffer: of the call.
        weights: l1_weights and l2_weights as lists.
        arguments: the others, lists as lists.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    profile = _profile(sym_buffer)
    if profile.product == "none":
        return
    communicator = _communicators.get(sym_buffer.group)
    # Older revisions lack some of the modes, which then have their default.
    said: dict[str, Any] = {name: getattr(sym_buffer, name) for name in _SIZES}
    said |= {name: getattr(sym_buffer, name) for name in _MODES if hasattr(sym_buffer, name)}
    facts = BufferFacts(
        ep_world_size=int(getattr(sym_buffer.ep_world_size, "value", sym_buffer.ep_world_size)),
        dispatch_quant_out_dtype=_name(sym_buffer.dispatch_quant_out_dtype),
        rank_num_per_server=getattr(sym_buffer, "rank_num_per_server", 0),
        earlier=None if communicator is None else communicator.first,
        **said,
    )
    window = int(getattr(sym_buffer.ccl_buffer_size, "value", sym_buffer.ccl_buffer_size))
    call = tensor_call_facts(x, topk_weights, weights, arguments, window)
    raise_broken(judge(profile, facts, call))


def remember(sym_buffer: Any) -> Any:
    """Let later calls with this buffer follow the settings of its creation, as the twin's do; returns the buffer."""
    _settings[sym_buffer] = active_settings() or Settings()
    return sym_buffer


@lru_cache(maxsize=1024)
def judge(profile: Profile, buffer: BufferFacts, call: CallFacts) -> list[Broken]:
    """What buffer and call break. Kept, because the calls of a layer are all alike but for their rows."""
    return [*broken_by_buffer(profile, buffer), *broken_by_call(profile, buffer, call)]


def _profile(sym_buffer: Any = None) -> Profile:
    """The profile of the open settings, else the buffer's; its topology is the communicator's where none is named."""
    config = active_settings() or (_settings.get(sym_buffer) if sym_buffer is not None else None) or Settings()
    topo_type = getattr(sym_buffer, "topo_type", 0)
    found = config.found_profile
    return find_profile(config.profile, "urma") if found.is_950 and config.topology == "auto" and topo_type else found


def _name(value: Any) -> str | None:
    found = normalise_dtype(value, "dispatch_quant_out_dtype")
    return None if found is None else found.name
