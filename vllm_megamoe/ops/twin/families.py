"""The arithmetic of the six use cases, with the device's rounding points: tokens to records, records to rows.

Three families differ in what a record holds and in how a GEMM ends; `family_of` chooses. Rounding points R1 to R13 are
the device's (rule `kernel`); rule `spec` computes the documents' formulas without them.

- `Dense`, A16W16 (op kernel arch22, BF16 path): bf16 after both GEMMs and the activation. In float32 the roundings fall
  away, twin only.
- `Ints`, A8W8-INT and A8W4-INT (op kernel arch22, INT8 and W4A8 paths): int8 tokens; every GEMM ends in a fixpipe that
  stores fp16. INT4 weights meet activations that are split into two INT4 digits (MSD), compensated by the bias.
- `Mx`, A8W8-FP, A8W4-FP and A4W4-FP (op kernel arch35): MX groups of 32 along the inner dimension.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.layout.packing import pack_nibbles, unpack_nibbles
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.int8 import quantise_tokens, requantise, split_msd, to_fp16
from vllm_megamoe.numerics.mx import GROUP, Elem, mx_dequantise, mx_quantise
from vllm_megamoe.numerics.switches import Nibbles, Numerics
from vllm_megamoe.ops.twin import gemm
from vllm_megamoe.ops.twin.call import Call, Experts, Group, Weights
from vllm_megamoe.ops.twin.kernels.product import ready, takes
from vllm_megamoe.ops.twin.plain_copy import with_plain
from vllm_megamoe.ops.twin.routing import cut, join


class Family(Protocol):
    """Arithmetic of one use case in one call.

    Attributes:
        row_dtype: dtype of an expert's output rows: bfloat16, or float32 where nothing rounds them.
    """

    row_dtype: torch.dtype

    def pack(self, x: Tensor, scales: Tensor | None) -> Tensor:
        """Tokens [T, H] as they are dispatched -> uint8 [T, bytes].

        Args:
            x: of the call.
            scales: E8M0 scales of an x that is quantised already.
        """

    def expert_rows(self, groups: Sequence[Group], records: Tensor, row_weights: Tensor | None) -> Tensor:
        """Both GEMMs of some local experts: uint8 [n, bytes] -> rows [n, H] of row_dtype.

        Args:
            groups: experts with their rows, which are all rows.
            records: as `pack` made them, by expert.
            row_weights: float32 [n, 1] router weights that multiply the activation, None when combine applies them.
        """


class Dense:
    """Arithmetic of A16W16.

    Args:
        l1, l2: weights [H, 2I] and [I, H].
        activation: of the call.
        dtype: of x and the weights: bfloat16, or float32 for comparisons.
        exact: rule `spec`: no rounding between the steps.
    """

    def __init__(self, l1: Weights, l2: Weights, activation: Activation, dtype: torch.dtype, exact: bool) -> None:
        self.l1, self.l2, self.activation, self.dtype = l1, l2, activation, dtype
        self.row_dtype = torch.float32 if exact else dtype

    def pack(self, x: Tensor, scales: Tensor | None) -> Tensor:
        del scales
        return x.contiguous().view(torch.uint8)

    def expert_rows(self, groups: Sequence[Group], records: Tensor, row_weights: Tensor | None) -> Tensor:
        inner = gemm.dense(records.view(self.dtype), self.l1, groups)
        gate, up = inner.to(self.row_dtype).float().chunk(2, dim=1)  # R1: gate and up leave the first GEMM in bf16
        a = self.activation.apply(gate, up)
        if row_weights is not None:
            a = a * row_weights
        a = a.to(self.row_dtype)  # R2: the activation is stored in bf16, half even
        return gemm.dense(a, self.l2, groups).to(self.row_dtype)  # R3: rows leave the second GEMM in bf16


def int8_product(q: Tensor, weights: Weights, groups: Sequence[Group], row_scale: Tensor, numerics: Numerics) -> Tensor:
    """int8 [n, K] x INT8 [K, N] -> float32 [n, N], both scales applied."""
    return fixpipe(gemm.integer(q, weights, groups, numerics), numerics) * row_scale  # R6: fp32 product


def fixpipe(scaled: Tensor, numerics: Numerics) -> Tensor:
    """Exact integer sums, in fp32 times the channel scale [n, N], stored in fp16 -> float32."""
    if numerics.rule == "spec":
        return scaled
    return to_fp16(scaled, numerics.fp16_overflow).float()  # R5: int32 -> fp32 -> times scale -> fp16, half even


def int4_product(q: Tensor, weights: Weights, groups: Sequence[Group], row_scale: Tensor, numerics: Numerics) -> Tensor:
    """int8 [n, K] x INT4 [K, N] -> float32 [n, N], both scales and the bias applied."""
    # One product for both digits: each row twice, as the device interleaves them.
    digits = q.new_empty(len(q), 2, q.shape[1])
    digits[:, 0], digits[:, 1] = split_msd(q)
    twice = [(expert, 2 * start, 2 * stop) for expert, start, stop in groups]
    halves = fixpipe(gemm.integer(digits.flatten(0, 1), weights, twice, numerics), numerics).view(len(q), 2, -1)
    merged = halves[:, 0] * 16.0 + halves[:, 1]
    for expert, start, stop in groups:
        merged[start:stop] += weights.biases[expert]  # R6: fp32, in this order, then times the row's scale
    return merged * row_scale


class Product(Protocol):
    """How one GEMM of the use case ends."""

    def __call__(
        self, q: Tensor, weights: Weights, groups: Sequence[Group], row_scale: Tensor, numerics: Numerics
    ) -> Tensor:
        """int8 [n, K] x weight, row scale float32 [n, 1] applied -> float32 [n, N]."""


class Ints:
    """Arithmetic of the integer use cases.

    Args:
        l1, l2: weights [H, 2I] and [I, H] with channel scales; INT4 also with compensation biases.
        product: how a GEMM of this weight type ends.
        activation: of the call.
        hidden: H.
        numerics: rule and switches.
    """

    def __init__(
        self,
        l1: Weights,
        l2: Weights,
        product: Product,
        activation: Activation,
        hidden: int,
        numerics: Numerics,
    ) -> None:
        self.l1, self.l2, self.product = l1, l2, product
        self.activation, self.hidden, self.numerics = activation, hidden, numerics
        self.row_dtype = torch.float32 if numerics.rule == "spec" else torch.bfloat16

    def pack(self, x: Tensor, scales: Tensor | None) -> Tensor:
        del scales
        q, scale = quantise_tokens(x.float(), self.numerics.rule)  # R4: int8 per token, through fp16, half away
        return join(q, scale)

    def expert_rows(self, groups: Sequence[Group], records: Tensor, row_weights: Tensor | None) -> Tensor:
        q, scale = cut(records, [(self.hidden, torch.int8), (1, torch.float32)])
        gate, up = self.product(q, self.l1, groups, scale, self.numerics).chunk(2, dim=1)
        a = self.activation.apply(gate, up)
        if row_weights is not None:
            a = a * row_weights
        q2, scale2 = requantise(a, self.numerics.rule)  # R7: int8 per row, times 127/amax, half even
        rows = self.product(q2, self.l2, groups, scale2[:, None], self.numerics)
        return rows.to(self.row_dtype)  # R8: rows leave in bf16, half even


ELEM_OF: dict[AclDtype, Elem] = {
    AclDtype.FLOAT8_E4M3FN: "e4m3",
    AclDtype.FLOAT8_E5M2: "e5m2",
    AclDtype.FLOAT4_E2M1: "e2m1",
}


class Mx:
    """Arithmetic of the MX use cases.

    Args:
        l1, l2: weights [2I, H] and [H, I] with paired E8M0 scales.
        activation: of the call.
        hidden: H.
        rows: element format of the dispatched rows.
        numerics: under rule `spec` no bf16 rounding between the steps; the quantisations are in the formulas and stay.
    """

    def __init__(
        self, l1: Weights, l2: Weights, activation: Activation, hidden: int, rows: Elem, numerics: Numerics
    ) -> None:
        self.l1, self.l2, self.activation, self.hidden = l1, l2, activation, hidden
        self.rows, self.rule = rows, numerics.rule
        self.row_dtype = torch.float32 if numerics.rule == "spec" else torch.bfloat16

    def pack(self, x: Tensor, scales: Tensor | None) -> Tensor:
        if scales is not None:
            # Quantised already: codes and scales travel as they came.
            return join(x.contiguous().view(torch.uint8), scales.contiguous().view(torch.uint8))
        codes, scales = mx_quantise(x, self.rows, self.rule)  # R9: MX groups of 32, half even, saturating
        return join(pack_nibbles(codes) if self.rows == "e2m1" else codes, scales)

    def expert_rows(self, groups: Sequence[Group], records: Tensor, row_weights: Tensor | None) -> Tensor:
        inner = gemm.mx(self._unpack(records), self.l1, groups)
        gate, up = inner.to(self.row_dtype).float().chunk(2, dim=1)  # R10: gate and up leave the first GEMM in bf16
        a = self.activation.apply(gate, up)
        if row_weights is not None:
            a = a * row_weights
        a = a.to(self.row_dtype).float()  # R11: the activation is stored in bf16, half even
        # A4W4's second GEMM is A8W4: FP4 activations would lose too much (operator_readme.txt).
        elem: Elem = "e4m3" if self.rows == "e2m1" else self.rows
        a = mx_dequantise(*mx_quantise(a, elem, self.rule), elem)  # R12: MX groups of 32 again
        return gemm.mx(a, self.l2, groups).to(self.row_dtype)  # R13: rows leave the second GEMM in bf16

    def _unpack(self, records: Tensor) -> Tensor:
        """uint8 [n, bytes] -> float32 [n, H]."""
        per_byte = 2 if self.rows == "e2m1" else 1
        codes, scales = cut(records, [(self.hidden // per_byte, torch.uint8), (-(-self.hidden // GROUP), torch.uint8)])
        return mx_dequantise(unpack_nibbles(codes) if self.rows == "e2m1" else codes, scales, self.rows)


def _compiled(weights: Weights, nibbles: Nibbles) -> Weights:
    """The weights, multiplied by a kernel where one takes them."""
    other_nibbles = weights.element is AclDtype.INT4 and nibbles != "twos_complement"
    return replace(weights, compiled=True) if takes(weights) and not other_nibbles else weights


def family_of(call: Call, experts: Experts) -> Family:
    """Arithmetic of routed or shared experts."""
    l1, l2, numerics = experts.l1, experts.l2, call.config.numerics
    if call.config.kernels == "on" and ready():
        l1, l2 = _compiled(l1, numerics.int4_nibbles), _compiled(l2, numerics.int4_nibbles)
    if call.config.plain_copy:
        l1, l2 = with_plain(l1, numerics.int4_nibbles), with_plain(l2, numerics.int4_nibbles)
    if experts.rows is not None:
        return Mx(l1, l2, call.activation, call.hidden, experts.rows, numerics)
    if l1.element is AclDtype.INT8:
        return Ints(l1, l2, int8_product, call.activation, call.hidden, numerics)
    if l1.element is AclDtype.INT4:
        return Ints(l1, l2, int4_product, call.activation, call.hidden, numerics)
    return Dense(l1, l2, call.activation, call.given.x.dtype, numerics.rule == "spec")
