"""A8W8-FP, A8W4-FP and A4W4-FP (op kernel arch35): MX groups of 32 along the inner dimension."""

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.layout.nibbles import pack_nibbles, unpack_nibbles
from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.minifloat import Elem
from vllm_megamoe.numerics.mx import GROUP, mx_dequantise, mx_quantise
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops.twin import gemm
from vllm_megamoe.ops.twin.records import cut, join
from vllm_megamoe.ops.twin.weights import Weights

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

    def expert(self, expert: int, records: Tensor, row_weights: Tensor | None) -> Tensor:
        inner = gemm.mx(self._unpack(records), self.l1, expert)
        gate, up = inner.to(self.row_dtype).float().chunk(2, dim=1)  # R10: gate and up leave the first GEMM in bf16
        a = self.activation.apply(gate, up)
        if row_weights is not None:
            a = a * row_weights
        a = a.to(self.row_dtype).float()  # R11: the activation is stored in bf16, half even
        # A4W4's second GEMM is A8W4: FP4 activations would lose too much (operator_readme.txt).
        elem: Elem = "e4m3" if self.rows == "e2m1" else self.rows
        a = mx_dequantise(*mx_quantise(a, elem, self.rule), elem)  # R12: MX groups of 32 again
        return gemm.mx(a, self.l2, expert).to(self.row_dtype)  # R13: rows leave the second GEMM in bf16

    def _unpack(self, records: Tensor) -> Tensor:
        """uint8 [n, bytes] -> float32 [n, H]."""
        per_byte = 2 if self.rows == "e2m1" else 1
        codes, scales = cut(records, [(self.hidden // per_byte, torch.uint8), (-(-self.hidden // GROUP), torch.uint8)])
        return mx_dequantise(unpack_nibbles(codes) if self.rows == "e2m1" else codes, scales, self.rows)
