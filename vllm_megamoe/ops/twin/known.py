"""Calls like earlier ones: what does not depend on a call's rows is read and checked once for the weights of a layer.

A call is known when the very same weights, scales and biases come with the same words, codes and numbers, to a buffer
with the same attributes. What is kept holds no weight: it goes with the first of them.
"""

import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops.arguments import CREATE, CallArguments, check_kinds, tensors_of
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.given import Given, GivenWeights, read_arguments
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.call import Call, Experts, PerExpert, Weights
from vllm_megamoe.ops.twin.read_call import read_call, read_rows

_LISTS = (
    ("l1_weights", "l1_weights_sf", "l1_bias"),
    ("l2_weights", "l2_weights_sf", "l2_bias"),
    ("shared_l1_weights", "shared_l1_weights_sf", "shared_l1_bias"),
    ("shared_l2_weights", "shared_l2_weights_sf", "shared_l2_bias"),
)
_GIVEN = ("l1", "l2", "shared_l1", "shared_l2")
_ATTRIBUTES = tuple(argument.name for argument in CREATE[1:])


@dataclass(frozen=True, slots=True)
class _Known:
    """One layer's.

    Attributes:
        tensors: all of its lists, in order, and where each began in memory.
        words: everything else that the reading depended on.
        given, routed, shared: as read, without a tensor.
        activation: of the call.
    """

    tensors: tuple["weakref.ref[Tensor]", ...]
    places: list[int]
    words: tuple[Any, ...]
    given: Given
    routed: Experts
    shared: Experts | None
    activation: Activation


_known: MutableMapping[Tensor, _Known] = WeakIdKeyDictionary()


def read_known(arguments: CallArguments, buffer: SymmBuffer, config: Settings) -> Call:
    """The call, read anew unless it is like an earlier one.

    Raises:
        OperatorError: see `read_call`, `read_arguments` and `check_kinds`.
    """
    if config.found_profile.product != "none" or not _fits(arguments):
        return _read(arguments, buffer, config)
    lists = [[tensors_of(getattr(arguments, name)) for name in names] for names in _LISTS]
    flat = [tensor for names in lists for tensors in names for tensor in tensors]
    words = _words(arguments, buffer, config, [len(tensors) for names in lists for tensors in names])
    if not flat or not all(isinstance(tensor, Tensor) for tensor in flat):
        return _read(arguments, buffer, config)
    held = _known.get(flat[0])
    if held is None or held.words != words or not _are(held.tensors, flat) or held.places != _places(flat):
        call = _read(arguments, buffer, config)
        _known[flat[0]] = _Known(
            tuple(weakref.ref(tensor) for tensor in flat),
            _places(flat),
            words,
            _bare_given(call.given),
            _bare(call.routed),
            None if call.shared is None else _bare(call.shared),
            call.activation,
        )
        return call
    given = replace(
        held.given,
        x=arguments.x,
        topk_ids=arguments.topk_ids,
        topk_weights=arguments.topk_weights,
        mask=arguments.x_active_mask,
        scales=arguments.scales,
    )
    shared = None if held.shared is None else _filled(held.shared, lists[2], lists[3])
    return read_rows(given, buffer, config, _filled(held.routed, lists[0], lists[1]), shared, held.activation, 0)


def _fits(arguments: CallArguments) -> bool:
    """Whether tensors and lists are of the right kind; else the whole reading says what is wrong."""
    rows = (arguments.x, arguments.topk_ids, arguments.topk_weights)
    optional = (arguments.x_active_mask, arguments.scales)
    lists = (getattr(arguments, name) for names in _LISTS for name in names)
    return (
        all(type(tensor) is Tensor for tensor in rows)
        and all(tensor is None or type(tensor) is Tensor for tensor in optional)
        and all(value is None or isinstance(value, Tensor | list | tuple) for value in lists)
        and isinstance(arguments.activation_params, Mapping | list | tuple | None)
    )


def _words(arguments: CallArguments, buffer: SymmBuffer, config: Settings, lengths: list[int]) -> tuple[Any, ...]:
    a = arguments
    given = a.activation_params
    params: tuple[Any, ...] = () if given is None else tuple(given.items() if isinstance(given, Mapping) else given)
    words = (
        *lengths,
        *(getattr(buffer, name) for name in _ATTRIBUTES),
        buffer.ep_world_size,
        config,
        a.activation,
        a.activation_clamp,
        type(given),
        *params,
        a.weight1_type,
        a.weight2_type,
        a.shared_weight1_type,
        a.shared_weight2_type,
        a.shared_expert_quant_out_dtype,
    )
    # True is no 1 where the arguments are read.
    return (*words, *map(type, words))


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """Where tensors lie in memory, and whether they still lie as they did."""
    found: list[int] = []
    for tensor in tensors:
        held = inner(tensor)
        found += (held.data_ptr(), held.numel(), held.is_contiguous())
    return found


def _are(references: Sequence["weakref.ref[Tensor]"], tensors: Sequence[Tensor]) -> bool:
    return all(reference() is tensor for reference, tensor in zip(references, tensors, strict=True))


def _read(arguments: CallArguments, buffer: SymmBuffer, config: Settings) -> Call:
    check_kinds(arguments)
    given = read_arguments(arguments)
    stored: dict[str, Any] = {name: _stored(getattr(given, name)) for name in _GIVEN}
    return read_call(replace(given, **stored), buffer, config)


def _stored(weights: GivenWeights) -> GivenWeights:
    return replace(weights, tensors=[inner(tensor) for tensor in weights.tensors])


_NONE = torch.empty(0)


def _bare_given(given: Given) -> Given:
    bare: dict[str, Any] = {name: replace(getattr(given, name), tensors=(), scales=(), biases=()) for name in _GIVEN}
    return replace(given, x=_NONE, topk_ids=_NONE, topk_weights=_NONE, mask=None, scales=None, **bare)


def _bare(experts: Experts) -> Experts:
    return replace(experts, l1=_emptied(experts.l1), l2=_emptied(experts.l2))


def _emptied(weights: Weights) -> Weights:
    return replace(weights, stored=_same((), weights.stored), scales=_same((), weights.scales), biases=(), source=())


def _same(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Other tensors, read as earlier ones were."""
    return PerExpert(tensors, like.stacked, like.carrier) if isinstance(like, PerExpert) else tensors


def _filled(experts: Experts, l1: list[list[Tensor]], l2: list[list[Tensor]]) -> Experts:
    return Experts(_with(experts.l1, *l1), _with(experts.l2, *l2), experts.rows)


def _with(weights: Weights, tensors: list[Tensor], scales: list[Tensor], biases: list[Tensor]) -> Weights:
    stored = [inner(tensor) for tensor in tensors]
    return replace(
        weights,
        stored=_same(stored, weights.stored),
        scales=_same(scales, weights.scales),
        biases=PerExpert(biases, isinstance(weights.stored, PerExpert) and weights.stored.stacked) if biases else (),
        source=stored,
    )
