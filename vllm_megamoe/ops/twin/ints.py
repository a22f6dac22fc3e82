"""A8W8-INT and A8W4-INT (op kernel arch22, INT8 and W4A8 paths); they differ only in how a product leaves the GEMM."""

from typing import Protocol

import torch
from torch import Tensor

from vllm_megamoe.numerics.activations import Activation
from vllm_megamoe.numerics.int8 import quantise_tokens, requantise
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops.twin.records import cut, join
from vllm_megamoe.ops.twin.weights import Weights


class Product(Protocol):
    """How one GEMM of the use case ends."""

    def __call__(self, q: Tensor, weights: Weights, expert: int, row_scale: Tensor, numerics: Numerics) -> Tensor:
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

    def expert(self, expert: int, records: Tensor, row_weights: Tensor | None) -> Tensor:
        q, scale = cut(records, [(self.hidden, torch.int8), (1, torch.float32)])
        gate, up = self.product(q, self.l1, expert, scale, self.numerics).chunk(2, dim=1)
        a = self.activation.apply(gate, up)
        if row_weights is not None:
            a = a * row_weights
        q2, scale2 = requantise(a, self.numerics.rule)  # R7: int8 per row, times 127/amax, half even
        rows = self.product(q2, self.l2, expert, scale2[:, None], self.numerics)
        return rows.to(self.row_dtype)  # R8: rows leave in bf16, half even
