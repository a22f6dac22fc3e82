"""Calls like earlier ones: what does not depend on a call's rows is read and checked once for the weights of a layer.

A call is known when the very same weights, scales and biases come with the same words, codes and numbers, to a buffer
with the same attributes. What is kept holds no weight: it goes with the first of them.
"""

import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from operator import call, is_
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
        tensors: all of its lists, in order.
        words: everything else that the reading depended on.
        given, routed, shared: as read, without a tensor.
        activation: of the call.
    """

    tensors: tuple["weakref.ref[Tensor]", ...]
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
    if not flat or not isinstance(flat[0], Tensor):
        return _read(arguments, buffer, config)
    held = _known.get(flat[0])
    if held is None or held.words != words or not all(map(is_, map(call, held.tensors), flat)):
        read = _read(arguments, buffer, config)
        _known[flat[0]] = _Known(
            tuple(weakref.ref(tensor) for tensor in flat),
            words,
            _bare_given(read.given),
            _bare(read.routed),
            None if read.shared is None else _bare(read.shared),
            read.activation,
        )
        return read
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


Rows = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""x, topk_ids, topk_weights, x_active_mask."""


def with_rows(fixed: CallArguments, rows: Rows) -> CallArguments:
    """The arguments with these rows."""
    x, topk_ids, topk_weights, mask = rows
    return replace(fixed, x=x, topk_ids=topk_ids, topk_weights=topk_weights, x_active_mask=mask)


def reader_of(fixed: CallArguments) -> Callable[[Rows, Settings], Call]:
    """Reads calls of these arguments: all of them under settings that are new, later the rows alone.

    Unlike `read_known` it keeps the weights, as its caller does.
    """
    buffer: SymmBuffer = fixed.sym_buffer
    known: tuple[Settings, Call] | None = None

    def read(rows: Rows, config: Settings) -> Call:
        nonlocal known
        x, topk_ids, topk_weights, mask = rows
        plain = all(type(tensor) is Tensor for tensor in rows if tensor is not None)
        if known is None or known[0] != config or not plain or config.found_profile.product != "none":
            made = read_known(with_rows(fixed, rows), buffer, config)
            known = config, made
            return made
        like = known[1]
        given = replace(like.given, x=x, topk_ids=topk_ids, topk_weights=topk_weights, mask=mask)
        return read_rows(given, buffer, config, like.routed, like.shared, like.activation, 0)

    return read


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
    return replace(weights, **_sides(weights, (), (), ()), source=())


def _filled(experts: Experts, l1: list[list[Tensor]], l2: list[list[Tensor]]) -> Experts:
    l1_weights = replace(experts.l1, **_sides(experts.l1, *l1), source=l1[0])
    return Experts(l1_weights, replace(experts.l2, **_sides(experts.l2, *l2), source=l2[0]), experts.rows)


def _sides(
    weights: Weights, stored: Sequence[Tensor], scales: Sequence[Tensor], biases: Sequence[Tensor]
) -> dict[str, Any]:
    """Other tensors in the place of a weight's, its scales' and its biases'."""
    given = {"stored": stored, "scales": scales, "biases": biases}
    lists = {name: (getattr(weights, name), tensors) for name, tensors in given.items()}
    return {name: old.of(new) if isinstance(old, PerExpert) else () for name, (old, new) in lists.items()}
