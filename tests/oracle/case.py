"""One call of the operator on all ranks, in logical terms: numbers and codes, no layout, no packing."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from oracle.activations import Activation
from oracle.interval import F32
from oracle.packing import bias8

Rule = Literal["kernel", "spec"]


@dataclass(frozen=True, slots=True)
class Dense:
    """bf16 numbers in float32: w13 [E, 2I, H], gate rows first; w2 [E, H, I]."""

    w13: F32
    w2: F32


@dataclass(frozen=True, slots=True)
class Integer:
    """Integers [E, 2I, H] and [E, H, I] with one scale per output channel [E, 2I], [E, H]; bits is 8 or 4.

    `b13` and `b2` are INT4 biases that the caller passes instead of the compensation 8 sum(w) s.
    """

    w13: NDArray[np.int8]
    s13: F32
    w2: NDArray[np.int8]
    s2: F32
    bits: int
    b13: F32 | None = None
    b2: F32 | None = None

    def biases(self) -> tuple[F32, F32]:
        """[E, 2I] and [E, H] as the operator gets them."""
        first = bias8(self.w13, self.s13) if self.b13 is None else self.b13
        return first, bias8(self.w2, self.s2) if self.b2 is None else self.b2


@dataclass(frozen=True, slots=True)
class Mx:
    """Codes, one per byte, [E, 2I, H] and [E, H, I]; scale bytes [E, 2I, ceil(H/32)], [E, H, ceil(I/32)]."""

    w13: NDArray[np.uint8]
    s13: NDArray[np.uint8]
    w2: NDArray[np.uint8]
    s2: NDArray[np.uint8]
    elem: str


Experts = Dense | Integer | Mx


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank passes in. x is bf16 (or fp32) numbers [T, H]; -1 in topk_ids is not sent.

    `codes` are element codes [T, H] and scale bytes [T, ceil(H/32)] of a pre-quantised call whose x is what they mean.
    """

    x: F32
    topk_ids: NDArray[np.int32]
    topk_weights: F32
    mask: NDArray[np.int8] | None = None
    shared: Experts | None = None
    codes: tuple[NDArray[np.uint8], NDArray[np.uint8]] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A call: use case, the experts of all ranks in order, what each rank passes, and the modes.

    act_elem is the element type of dispatch for the MX use cases; prequantised means that the ranks pass x as codes:
    those that dispatch would make, or their own.
    full_float32 is the twin's float32 mode; probable_sums bounds long sums by likelihood (see gemm).
    """

    use_case: str
    experts: Experts
    ranks: tuple[Rank, ...]
    act: Activation = field(default_factory=Activation)
    act_elem: str | None = None
    shared_elem: str | None = None
    prequantised: bool = False
    combine_quant_mode: int = 0
    topk_weights_type: int = 0
    combine_comm_mode: int = 0
    max_recv_token_num: int = 0
    rule: Rule = "kernel"
    scale_bits: str = "fp32"
    fp16_overflow: str = "inf"
    full_float32: bool = False
    probable_sums: bool = False

    @property
    def num_experts(self) -> int:
        return len(self.experts.w13)

    @property
    def experts_per_rank(self) -> int:
        return self.num_experts // len(self.ranks)
