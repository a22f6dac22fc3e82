"""A checked call: what the twin computes with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.mx import Elem
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.given import Given, Order
from vllm_megamoe.ops.settings import Settings

Group = tuple[int, int, int]
"""An expert and its rows among those of a product: index, first row, row behind the last one."""


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
        compiled: whether a kernel multiplies few rows with them.
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
    compiled: bool = False

    @property
    def count(self) -> int:
        """Experts in it."""
        return len(self.stored)


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
        given: what the caller gave.
        routed, shared: experts; `shared` is None when there are none.
        activation: with every parameter.
        sent: bool [T, K], the pairs that are dispatched.
        hidden: H in elements.
        window: bytes of the buffer's window, 0 in profile `none`.
    """

    buffer: SymmBuffer
    config: Settings
    given: Given
    routed: Experts
    shared: Experts | None
    activation: Activation
    sent: Tensor
    hidden: int
    window: int

    @property
    def is_float32(self) -> bool:
        """The twin-only mode without bf16 roundings."""
        return self.given.x.dtype == torch.float32
