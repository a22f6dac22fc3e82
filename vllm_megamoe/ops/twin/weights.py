"""The weights of a call: one matrix per expert as stored bytes, with their logical size, scales and biases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype, AclFormat

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
