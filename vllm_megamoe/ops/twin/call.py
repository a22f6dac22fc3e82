"""The weights of a call: one matrix per expert as stored bytes, with their logical size, scales and biases.

dtype arguments as plain integers, which is all that a custom op's schema takes.

One call: what came, read and checked against the buffer as it is now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.dtypes import normalise_dtype
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.mx import Elem
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Settings

Order = Literal["k_first", "k_last"]
PER_BYTE = {AclDtype.INT4: 2, AclDtype.FLOAT4_E2M1: 2}
"""Elements in a byte of a packed carrier."""


@dataclass(frozen=True, slots=True)
class RawWeights:
    """One weight argument as the custom op got it.

    Attributes:
        name: of the argument.
        tensors: stored bytes, one tensor per expert, or a single one for all.
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


@dataclass(frozen=True, slots=True)
class Weights:
    """One weight argument, checked, one entry per expert.

    Attributes:
        name: of the argument.
        element: type of an element.
        acl_format: storage format as the operator sees it.
        order: `k_first` [K, N] (A16W16 and integers) or `k_last` [N, K] (MX).
        inputs, outputs: K and N, in elements.
        stored: [R, C], or NZ blocks [ceil(C/C0), ceil(R/16), 16, C0]; bytes where torch cannot compute.
        scales, biases: one tensor per expert; empty when absent.
        source: the caller's tensors, by which a plain copy is found again.
        plain: float32 copies, one per expert, laid out as one block of all channels; empty when there are none.
    """

    name: str
    element: AclDtype
    acl_format: AclFormat
    order: Order
    inputs: int
    outputs: int
    stored: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    source: tuple[Tensor, ...]
    plain: tuple[Tensor, ...] = ()

    @property
    def count(self) -> int:
        """Experts in it."""
        return len(self.stored)


def per_expert(tensors: Sequence[Tensor], stacked: bool) -> tuple[Tensor, ...]:
    """A list, or the slices of its single stack."""
    if not tensors:
        return ()
    return tuple(tensors[0].unbind(0)) if stacked else tuple(tensors)


def carrier(tensor: Tensor, element: AclDtype) -> Tensor:
    """Stored bytes in a dtype that torch computes with: int8 for integers, uint8 for MX codes, else as they are."""
    if element in (AclDtype.INT8, AclDtype.INT4):
        return tensor.view(torch.int8)
    if element in (AclDtype.BF16, AclDtype.FLOAT):
        return tensor
    return tensor.view(torch.uint8)


ABSENT = -1


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def code_of(name: str, value: torch.dtype | int | None) -> int:
    """ACL's number of a dtype argument in any spelling (op csrc, GetAclDataType), ABSENT for None.

    Raises:
        OperatorError: no code of the operator.
    """
    try:
        found = normalise_dtype(value, name)
    except ValueError as e:
        raise OperatorError(f"mega_moe: {e}") from e
    return ABSENT if found is None else int(found)


def dtype_from(code: int) -> AclDtype | None:
    """The inverse of `code_of`."""
    return None if code == ABSENT else AclDtype(code)


Lists = Sequence[Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class RawCall:
    """The custom op's arguments, grouped but not looked at.

    Attributes:
        l1, l2, shared_l1, shared_l2: the four weights; a shared one without tensors is absent.
        shared_out: `shared_expert_quant_out_dtype`.
        activation, clamp, params: of the activation.
        The others as in `mega_moe`.
    """

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    mask: Tensor | None
    scales: Tensor | None
    l1: RawWeights
    l2: RawWeights
    shared_l1: RawWeights
    shared_l2: RawWeights
    shared_out: AclDtype | None
    activation: str
    clamp: float | None
    params: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed or shared experts of a call.

    Attributes:
        l1, l2: their weights.
        rows: MX format of the rows that enter the first GEMM, None outside of the MX family.
    """

    l1: Weights
    l2: Weights
    rows: Elem | None


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call.

    Attributes:
        buffer, config: configuration; `config` is the open `settings(...)` block's, else the buffer's.
        raw: tensors of the call.
        routed, shared: experts; `shared` is None when there are none.
        activation: with every parameter.
        sent: bool [T, K], the pairs that are dispatched.
        hidden: H in elements.
    """

    buffer: SymmBuffer
    config: Settings
    raw: RawCall
    routed: Experts
    shared: Experts | None
    activation: Activation
    sent: Tensor
    hidden: int

    @property
    def is_float32(self) -> bool:
        """The twin-only mode without bf16 roundings."""
        return self.raw.x.dtype == torch.float32


def group_arguments(
    lists: tuple[Lists, Lists], formats: Sequence[int], shapes: Sequence[int], types: Sequence[AclDtype | None]
) -> tuple[RawWeights, RawWeights, RawWeights, RawWeights]:
    """The four weights out of the custom op's flat arguments (see `mega_moe_op`)."""
    (l1, l2, sf1, sf2, bias1, bias2), (shared1, shared2, shared_sf1, shared_sf2, *_) = lists
    parts = [
        ("l1_weights", l1, sf1, bias1, types[0]),
        ("l2_weights", l2, sf2, bias2, types[1]),
        ("shared_l1_weights", shared1, shared_sf1, (), types[2]),
        ("shared_l2_weights", shared2, shared_sf2, (), types[3]),
    ]
    formats_left, shapes_left = iter(formats), iter(shapes)
    made = []
    for name, tensors, scales, biases, declared in parts:
        dims = [tuple(next(shapes_left) for _ in range(next(shapes_left))) for _ in tensors]
        kinds = [AclFormat(next(formats_left)) for _ in tensors]
        made.append(RawWeights(name, tensors, dims, kinds, scales, biases, declared))
    return made[0], made[1], made[2], made[3]
