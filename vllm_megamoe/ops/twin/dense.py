"""A16W16: BF16 rows and weights (op kernel arch22, BF16 path). In float32 the roundings fall away, twin only."""

import torch
from torch import Tensor

from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.ops.twin import gemm
from vllm_megamoe.ops.twin.weights import Weights


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

    def expert(self, expert: int, records: Tensor, row_weights: Tensor | None) -> Tensor:
        inner = gemm.dense(records.view(self.dtype).float(), self.l1, expert)
        gate, up = inner.to(self.row_dtype).float().chunk(2, dim=1)  # R1: gate and up leave the first GEMM in bf16
        a = self.activation.apply(gate, up)
        if row_weights is not None:
            a = a * row_weights
        a = a.to(self.row_dtype).float()  # R2: the activation is stored in bf16, half even
        return gemm.dense(a, self.l2, expert).to(self.row_dtype)  # R3: rows leave the second GEMM in bf16
