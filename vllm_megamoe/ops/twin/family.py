"""What a family of use cases must be able to do; the families differ in nothing else."""

from typing import Protocol

import torch
from torch import Tensor


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

    def expert(self, expert: int, records: Tensor, row_weights: Tensor | None) -> Tensor:
        """Both GEMMs of one local expert: uint8 [n, bytes] -> rows [n, H] of row_dtype.

        Args:
            expert: index among the experts of this rank.
            records: as `pack` made them.
            row_weights: float32 [n, 1] router weights that multiply the activation, None when combine applies them.
        """
