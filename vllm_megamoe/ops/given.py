"""What a caller gave `mega_moe`, as both backends read it, and the plain facts of it that a product's rules look at.

Nothing here computes with a tensor: shapes, element types and storage formats are read off, of every entry of a list.
"""

import weakref
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.numerics.activations import named_parameters
from vllm_megamoe.ops.arguments import CallArguments, dtype_of_argument, tensors_of
from vllm_megamoe.ops.rejection import rejection, type_name
from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call

Order = Literal["k_first", "k_last"]
PER_BYTE = {AclDtype.INT4: 2, AclDtype.FLOAT4_E2M1: 2}
"""Elements in a byte of a packed carrier."""

MX_TYPES = (AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1)
_UNSCALED = ("BF16", "FLOAT")
_PACKED = tuple(dtype.name for dtype in PER_BYTE)
_MX_NAMES = tuple(dtype.name for dtype in MX_TYPES)
_LISTS = "torch_api.txt, constraints table; operator_readme.txt, TensorList layouts"
PACKED_FP4 = (torch.uint8, torch.float4_e2m1fn_x2)
"""Carriers of a packed FP4 x, the only x in uint8."""


@dataclass(frozen=True)
class GivenWeights:
    """One weight argument as it came.

    Attributes:
        name: of the argument.
        tensors: one per expert, or a single one for all; on the way through the twin's custom op their stored bytes.
        shapes: logical shapes, in elements of the carrier.
        formats: storage formats, as the carrier shows them.
        scales, biases: the lists that belong to it; empty when absent.
        declared: what the caller says the elements are, None to go by the carrier.
    """

    name: str
    tensors: Sequence[Tensor]
    shapes: Sequence[tuple[int, ...]]
    formats: Sequence[AclFormat]
    scales: Sequence[Tensor]
    biases: Sequence[Tensor]
    declared: AclDtype | None

    @property
    def is_stacked(self) -> bool:
        """One tensor for all experts."""
        return len(self.tensors) == 1 and len(self.shapes[0]) == 3

    @property
    def count(self) -> int:
        """Experts in it."""
        return self.shapes[0][0] if self.is_stacked else len(self.tensors)

    @cached_property
    def element(self) -> str:
        """ACL's name of the elements: as declared, else as the dtype tells; int32 carries INT4 (op csrc)."""
        if self.declared is not None:
            return self.declared.name
        return "INT4" if self.tensors[0].dtype == torch.int32 else type_name(self.tensors[0].dtype)

    @property
    def order(self) -> Order:
        """`k_first` [K, N] (BF16 and integers) or `k_last` [N, K] (MX)."""
        return "k_last" if self.element in _MX_NAMES else "k_first"

    @property
    def inputs_outputs(self) -> tuple[int, int]:
        """K and N in elements, as the order says."""
        packed = 2 if self.element in _PACKED else 1
        words = 4 if self.tensors[0].dtype == torch.int32 else 1
        rows, columns = self.shapes[0][-2], self.shapes[0][-1] * packed * words
        return (rows, columns) if self.order == "k_first" else (columns, rows)

    @property
    def format_name(self) -> str:
        """As the operator sees it: blocks of 16 bytes are blocks of 32 packed elements (csrc mega_moe.cpp)."""
        narrow = self.element in _PACKED and self.formats[0] is AclFormat.FRACTAL_NZ_C0_16
        return (AclFormat.FRACTAL_NZ_C0_32 if narrow else self.formats[0]).name

    def check_list(self) -> None:
        """Reject a list that is empty, mixed, or of tensors that are no matrices; every entry is looked at.

        A2/A3 read dtype and format of the first entry alone and misread the others (op aclnn).

        Raises:
            OperatorError: naming the entry that differs.
        """
        if not self.tensors:
            remedy = f"Pass {self.name}=[tensor, ...], one for each expert of this rank, or one stack."
            raise rejection(self.name, "no tensors", "the experts of this rank", _LISTS, remedy)
        first = self.shapes[0]
        if len(first) not in (2, 3) or (len(first) == 3 and len(self.tensors) != 1):
            rule = "a list of 2-D tensors, one per expert, or one 3-D stack"
            value = (
                f"a {len(first)}-D tensor" if len(self.tensors) == 1 else f"{len(self.tensors)} {len(first)}-D tensors"
            )
            raise rejection(self.name, value, rule, _LISTS, "Unbind a stack with .unbind(0), or pass it as [stack].")
        kinds = zip(self.shapes, self.formats, (tensor.dtype for tensor in self.tensors), strict=True)
        alike = (first, self.formats[0], self.tensors[0].dtype)
        for place, kind in enumerate(kinds):
            if kind != alike:
                value, rule = (f"{fmt.name} {list(shape)} {dtype}" for shape, fmt, dtype in (kind, alike))
                remedy = "Make all entries alike: format_cast(.., AclFormat.FRACTAL_NZ) or ND for each."
                raise rejection(f"{self.name}[{place}]", value, f"{rule}, as {self.name}[0]", _LISTS, remedy)


@dataclass(frozen=True, slots=True)
class Given:
    """A call, grouped.

    Attributes:
        l1, l2, shared_l1, shared_l2: the four weights; a shared one without tensors is absent.
        shared_out: `shared_expert_quant_out_dtype`.
        activation, clamp, params: of the activation; params by name.
        The others as in `mega_moe`.
    """

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    mask: Tensor | None
    scales: Tensor | None
    l1: GivenWeights
    l2: GivenWeights
    shared_l1: GivenWeights
    shared_l2: GivenWeights
    shared_out: AclDtype | None
    activation: str
    clamp: float | None
    params: dict[str, float]


def read_arguments(arguments: CallArguments) -> Given:
    """The arguments of a call, grouped; their kinds must be right (`arguments.wrong_kind`).

    Raises:
        OperatorError: a code that is no dtype, a wrong activation, or a list that is no list of matrices.
    """
    a = arguments
    clamp, params = named_parameters(a.activation, a.activation_clamp, a.activation_params)
    lists = (
        ("l1_weights", a.l1_weights, a.l1_weights_sf, a.l1_bias, "weight1_type", a.weight1_type),
        ("l2_weights", a.l2_weights, a.l2_weights_sf, a.l2_bias, "weight2_type", a.weight2_type),
        ("shared_l1_weights", a.shared_l1_weights, a.shared_l1_weights_sf, None, *_shared_type(a, 1)),
        ("shared_l2_weights", a.shared_l2_weights, a.shared_l2_weights_sf, None, *_shared_type(a, 2)),
    )
    made = [
        _read_once(name, tensors_of(held), tensors_of(scales), tensors_of(biases), dtype_of_argument(typed, declared))
        for name, held, scales, biases, typed, declared in lists
    ]
    out = dtype_of_argument("shared_expert_quant_out_dtype", a.shared_expert_quant_out_dtype)
    return Given(a.x, a.topk_ids, a.topk_weights, a.x_active_mask, a.scales, *made, out, a.activation, clamp, params)


def _shared_type(a: CallArguments, layer: int) -> tuple[str, torch.dtype | int | None]:
    name = f"shared_weight{layer}_type"
    return name, getattr(a, name)


_read: MutableMapping[Tensor, tuple[tuple["weakref.ref[Tensor]", ...], GivenWeights]] = WeakIdKeyDictionary()


def _read_once(
    name: str, tensors: list[Tensor], scales: list[Tensor], biases: list[Tensor], declared: AclDtype | None
) -> GivenWeights:
    """A weight argument with every entry checked: once for the tensors of a layer, not once for each call.

    On an NPU the format of a tensor is asked of torch_npu, and a layer has two lists of up to 1024 experts.
    """
    if tensors:
        held = _read.get(tensors[0])
        if (
            held is not None
            and len(held[0]) == len(tensors)
            and all(reference() is tensor for reference, tensor in zip(held[0], tensors, strict=True))
        ):
            return replace(held[1], tensors=tensors, scales=scales, biases=biases, declared=declared)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    made = GivenWeights(name, tensors, shapes, [format_of(tensor) for tensor in tensors], scales, biases, declared)
    if not tensors and name.startswith("shared"):
        return made
    made.check_list()
    references = tuple(weakref.ref(tensor) for tensor in tensors)
    _read[tensors[0]] = (references, replace(made, tensors=(), scales=(), biases=()))
    return made


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


_TABLES = "operator_readme.txt, use case tables"


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
