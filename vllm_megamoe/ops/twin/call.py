"""A checked call: what the twin computes with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.mx import Elem
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.given import Given, Order
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.settings import Settings

Group = tuple[int, int, int]
"""An expert and its rows among those of a product: index, first row, row behind the last one."""


class PerExpert(Sequence[Tensor]):
    """A list argument, one entry per expert; an expert's bytes are looked at when they are asked for.

    Args:
        given: a tensor for each expert, or a stack of all, plain or formatted.
        stacked: which of the two.
        carrier: dtype that the bytes are read as, None for their own.
        elements: of each tensor, None to go by the first one.
    """

    __slots__ = ("carrier", "elements", "given", "stacked")

    def __init__(
        self, given: Sequence[Tensor], stacked: bool, carrier: torch.dtype | None = None, elements: int | None = None
    ) -> None:
        self.given, self.stacked, self.carrier = given, stacked, carrier
        self.elements = inner(given[0]).numel() if elements is None and len(given) else elements

    def of(self, given: Sequence[Tensor]) -> "PerExpert":
        """Other tensors of the same kind and size."""
        return PerExpert(given, self.stacked, self.carrier, self.elements)

    def __len__(self) -> int:
        if not self.given:
            return 0
        return len(inner(self.given[0])) if self.stacked else len(self.given)

    @overload
    def __getitem__(self, expert: int) -> Tensor: ...
    @overload
    def __getitem__(self, expert: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, expert: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(expert, slice):
            return [self[one] for one in range(len(self))[expert]]
        if not 0 <= expert < len(self):
            raise IndexError(expert)
        held = self._unchanged(inner(self.given[0] if self.stacked else self.given[expert]))
        tensor = held[expert] if self.stacked else held
        return tensor if self.carrier is None else tensor.view(self.carrier)

    def addresses(self, experts: Iterable[int]) -> list[int]:
        """Where the tensors of some experts begin in memory.

        Raises:
            OperatorError: a tensor was changed in place to another size since it was read.
        """
        if not self.stacked:
            return [self._unchanged(inner(self.given[expert])).data_ptr() for expert in experts]
        stack = self._unchanged(inner(self.given[0]))
        start, size = stack.data_ptr(), stack.stride(0) * stack.element_size()
        return [start + expert * size for expert in experts]

    def _unchanged(self, tensor: Tensor) -> Tensor:
        if tensor.numel() != self.elements or not tensor.is_contiguous():
            raise rejection(
                "weights, scales or biases",
                f"a tensor {list(tensor.shape)} of strides {tensor.stride()}",
                f"{self.elements} contiguous elements, as when it was read first",
                "torch_api.txt, constraints table",
                "Pass a new tensor, instead of changing the shape of one that an earlier call took.",
            )
        return tensor


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
    stored: Sequence[Tensor]
    scales: Sequence[Tensor]
    biases: Sequence[Tensor]
    source: Sequence[Tensor]
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
