"""A call as plain facts, for the product's rules, and what no product takes otherwise: sizes, scales, biases.

Both backends ask here: the twin before it computes, the CANN adapter before the package is called.
"""

import weakref
from collections.abc import MutableMapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.given import PACKED_FP4, Given, GivenWeights
from vllm_megamoe.ops.rejection import rejection, type_name
from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call

_UNSCALED = ("BF16", "FLOAT")
_TABLES = "operator_readme.txt, use case tables"
_API = "torch_api.txt, constraints table"
_LISTS = "operator_readme.txt, TensorList layouts"


def weight_facts(l1: GivenWeights, l2: GivenWeights, hidden: int) -> WeightFacts:
    """Routed or shared experts as the rules see them.

    Args:
        l1, l2: both with tensors.
        hidden: H of the buffer. A second weight that lies the other way round, H inputs to other outputs, counts with
            its true width, so that the rule of widths judges that; `check_orientation` rejects it then.
    """
    inputs, outputs = l2.inputs_outputs
    width = outputs if outputs != hidden and inputs == hidden else inputs
    needs_scales, needs_bias = l1.element not in _UNSCALED, l1.element == "INT4"
    return WeightFacts(
        element1=l1.element,
        element2=l2.element,
        carrier="INT32" if l1.tensors[0].dtype == torch.int32 else l1.element,
        format1=l1.format_name,
        format2=l2.format_name,
        stacked=l1.is_stacked,
        count=l1.count,
        intermediate_hidden=width,
        has_scales=_are_given(l1.scales, l2.scales, needs_scales),
        has_bias=_are_given(l1.biases, l2.biases, needs_bias),
    )


def _are_given(first: Sequence[Tensor], second: Sequence[Tensor], needed: bool) -> bool:
    """Both where they are needed; where they are not, one alone is one too many."""
    given = bool(first), bool(second)
    return all(given) if needed else any(given)


def call_facts(
    given: Given, hidden: int, window: int, rows: tuple[int, ...] = (), received: tuple[int, ...] = ()
) -> CallFacts:
    """A call as the rules see it.

    Args:
        given: its arguments, with matrices in all lists and a 2-D x.
        hidden: H of the buffer.
        window: bytes of the buffer's whole window.
        rows, received: what the ranks told each other, empty before they have met.

    Raises:
        OperatorError: one of the two shared weights without the other.
    """
    shared = None
    if given.shared_l1.tensors or given.shared_l2.tensors:
        for weights in (given.shared_l1, given.shared_l2):
            weights.check_list()
        shared = weight_facts(given.shared_l1, given.shared_l2, hidden)
    x_type = AclDtype.FLOAT4_E2M1.name if given.x.dtype in PACKED_FP4 else type_name(given.x.dtype)
    return CallFacts(
        rows=given.x.shape[0],
        x_dtype=x_type,
        topk_weights_dtype=type_name(given.topk_weights.dtype),
        has_mask=given.mask is not None,
        has_scales=given.scales is not None,
        routed=weight_facts(given.l1, given.l2, hidden),
        shared=shared,
        shared_out_dtype=None if given.shared_out is None else given.shared_out.name,
        activation=given.activation,
        activation_clamp=given.clamp,
        activation_params=given.params,
        ccl_buffer_size=window,
        rows_of_ranks=rows,
        received_rows=received,
    )


@lru_cache(maxsize=1024)
def judge(profile: Profile, buffer: BufferFacts, call: CallFacts) -> tuple[Broken, ...]:
    """What buffer and call break. Kept, because the calls of a layer are all alike but for their rows."""
    return (*broken_by_buffer(profile, buffer), *broken_by_call(profile, buffer, call))


def check_orientation(l1: GivenWeights, l2: GivenWeights, hidden: int) -> None:
    """Reject matrices that do not take H in and give H out; where the other orientation would, say so.

    Raises:
        OperatorError: naming the weight, its sizes as read, and the way in which its element type lies.
    """
    _check_matrix(l1, hidden, "[hidden, 2 * intermediate]", "[2 * intermediate, hidden]", takes=True)
    _check_matrix(l2, hidden, "[intermediate, hidden]", "[hidden, intermediate]", takes=False)
    outputs, inputs = l1.inputs_outputs[1], l2.inputs_outputs[0]
    if outputs % 2 or inputs * 2 != outputs:
        rule = f"K={outputs // 2}, half of {l1.name}'s N={outputs}: its first half is the gate, its second half up"
        remedy = f"Pass {l1.name} with gate and up behind one another, {l2.name} of the same width."
        raise rejection(l2.name, f"K={inputs}, N={l2.inputs_outputs[1]}", rule, _TABLES, remedy)


def _check_matrix(weights: GivenWeights, hidden: int, k_first: str, k_last: str, *, takes: bool) -> None:
    inputs, outputs = weights.inputs_outputs
    if (inputs if takes else outputs) == hidden:
        return
    mine, other = (k_first, k_last) if weights.order == "k_first" else (k_last, k_first)
    first = "inputs" if weights.order == "k_first" else "outputs"
    rule = f"{mine} with hidden={hidden}: {weights.element} weights lie {first} first"
    remedy = f"Make a buffer with hidden={inputs if takes else outputs}, or pass experts of hidden={hidden}."
    if (outputs if takes else inputs) == hidden:
        remedy = f"These lie the other way round, {other}: pass weight.t().contiguous(), packed anew where it is 4-bit."
    raise rejection(weights.name, f"K={inputs}, N={outputs}", rule, _TABLES, remedy)


_right: MutableMapping[Tensor, tuple["weakref.ref[Tensor]", ...]] = WeakIdKeyDictionary()
"""All tensors of an argument whose sides were found right, by its first one."""


def check_sides(weights: GivenWeights) -> None:
    """Reject weights, scales and biases that are strided, and sides that do not go with every one of the weights.

    Their orientation must be right (`check_orientation`).

    A2 and A3 look at the first scales' dimensions alone, and read missing channels from behind the tensor (op tiling
    arch22). Each list is looked at once, not at every call.

    Raises:
        OperatorError: naming the list, what came, and its remedy.
    """
    tensors = (*weights.tensors, *weights.scales, *weights.biases)
    held = _right.get(weights.tensors[0], ())
    if len(held) == len(tensors) and all(one() is tensor for one, tensor in zip(held, tensors, strict=True)):
        return
    for tensor in weights.tensors:
        _check_contiguous(weights.name, tensor)
    _check_scales(weights)
    _check_biases(weights)
    _right[weights.tensors[0]] = tuple(weakref.ref(tensor) for tensor in tensors)


def _check_scales(weights: GivenWeights) -> None:
    name, (inputs, outputs) = f"{weights.name}_sf", weights.inputs_outputs
    if weights.element in _UNSCALED:
        if weights.scales:
            raise rejection(name, _count(weights.scales), "None for BF16 weights", _API, f"Drop {name}: pass None.")
    elif weights.element in ("INT8", "INT4"):
        remedy = "Take scale.view(torch.int32).to(torch.int64).view(torch.uint64) of the float32 scale."
        _check_side(weights, name, weights.scales, (torch.uint64, torch.int64), (outputs,), remedy)
    else:
        remedy = "Pad the groups of 32 to an even number and take .view(torch.float8_e8m0fnu)."
        shape = (outputs, -(-inputs // 64), 2)
        _check_side(weights, name, weights.scales, (torch.float8_e8m0fnu, torch.uint8), shape, remedy)


def _check_biases(weights: GivenWeights) -> None:
    name, outputs = weights.name.replace("_weights", "_bias"), weights.inputs_outputs[1]
    if weights.element == "INT4":
        remedy = "Give 8 * sum over K of the weight's integers, times its scale, per output channel."
        _check_side(weights, name, weights.biases, (torch.float32,), (outputs,), remedy)
    elif weights.biases:
        rule = "None unless the weights are INT4"
        raise rejection(name, _count(weights.biases), rule, _API, f"Drop {name}: pass None.")


def _check_side(
    weights: GivenWeights,
    name: str,
    tensors: Sequence[Tensor],
    dtypes: tuple[torch.dtype, ...],
    shape: tuple[int, ...],
    remedy: str,
) -> None:
    """A list that goes with the weights: same list layout, one entry of `shape` per expert."""
    if weights.is_stacked:
        shape = (weights.count, *shape)
    if len(tensors) != len(weights.tensors):
        rule = f"as many tensors as {weights.name}, {len(weights.tensors)}"
        raise rejection(name, _count(tensors), rule, _LISTS, remedy)
    for tensor in tensors:
        if tensor.dtype not in dtypes:
            raise rejection(f"{name}.dtype", tensor.dtype, dtypes[0], _API, remedy)
        if tuple(tensor.shape) != shape:
            raise rejection(f"{name}.shape", list(tensor.shape), list(shape), _API, remedy)
        _check_contiguous(name, tensor)


def _check_contiguous(name: str, tensor: Tensor) -> None:
    """Weights, scales and biases must not be strided (torch_api.txt, constraints table)."""
    if not tensor.is_contiguous():
        raise rejection(f"{name}.stride()", tensor.stride(), "contiguous", _API, f"Pass {name} after .contiguous().")


def _count(tensors: Sequence[Tensor]) -> str:
    return f"{len(tensors)} tensors" if tensors else "None"


def check_width(intermediate_hidden: int, width: int) -> None:
    """A buffer's `intermediate_hidden` is 0, I, or N = 2I, which the documents also call by that name.

    Raises:
        OperatorError: it is another number than the weights have.
    """
    if intermediate_hidden in (0, width, 2 * width):
        return
    rule = f"0, I={width} or 2I={2 * width} of this call's weights"
    source = "torch_api.txt, parameter consistency and examples"
    remedy = f"Create the buffer with intermediate_hidden={width}, or with 0 where layers of several widths share it."
    raise rejection("intermediate_hidden", intermediate_hidden, rule, source, remedy)
