"""What a caller gave `mega_moe`, as both backends read it: tokens, modes, and four weights with what belongs to each.

Nothing here computes with a tensor: shapes, element types and storage formats are read off, of every entry of a list.
"""

import weakref
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.numerics.activations import named_parameters
from vllm_megamoe.ops.arguments import CallArguments, DtypeArgument, WeightList, dtype_of_argument, tensors_of
from vllm_megamoe.ops.rejection import rejection, type_name

Order = Literal["k_first", "k_last"]
PER_BYTE = {AclDtype.INT4: 2, AclDtype.FLOAT4_E2M1: 2}
"""Elements in a byte of a packed carrier."""

MX_TYPES = (AclDtype.FLOAT8_E5M2, AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1)
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
    return Given(
        x=a.x,
        topk_ids=a.topk_ids,
        topk_weights=a.topk_weights,
        mask=a.x_active_mask,
        scales=a.scales,
        l1=_read_once("l1_weights", a.l1_weights, a.l1_weights_sf, a.l1_bias, "weight1_type", a.weight1_type),
        l2=_read_once("l2_weights", a.l2_weights, a.l2_weights_sf, a.l2_bias, "weight2_type", a.weight2_type),
        shared_l1=_read_once(
            "shared_l1_weights",
            a.shared_l1_weights,
            a.shared_l1_weights_sf,
            None,
            "shared_weight1_type",
            a.shared_weight1_type,
        ),
        shared_l2=_read_once(
            "shared_l2_weights",
            a.shared_l2_weights,
            a.shared_l2_weights_sf,
            None,
            "shared_weight2_type",
            a.shared_weight2_type,
        ),
        shared_out=dtype_of_argument("shared_expert_quant_out_dtype", a.shared_expert_quant_out_dtype),
        activation=a.activation,
        clamp=clamp,
        params=params,
    )


_read: MutableMapping[Tensor, tuple[tuple["weakref.ref[Tensor]", ...], GivenWeights]] = WeakIdKeyDictionary()


def _read_once(
    name: str,
    weights: WeightList | None,
    scale_list: WeightList | None,
    bias_list: WeightList | None,
    typed: str,
    code: DtypeArgument,
) -> GivenWeights:
    """A weight argument with every entry checked: once for the tensors of a layer, not once for each call.

    On an NPU the format of a tensor is asked of torch_npu, and a layer has two lists of up to 1024 experts.
    """
    tensors, scales, biases = tensors_of(weights), tensors_of(scale_list), tensors_of(bias_list)
    declared = dtype_of_argument(typed, code)
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
