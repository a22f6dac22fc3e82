"""Plain pieces of a weight in any storage format, so that a matmul never unpacks the whole of it.

In FRACTAL_NZ a block of C0 columns is contiguous; a range of rows is one stretch out of every block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.layout.fractal import nz_columns, nz_rows


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, columns] in its stored form.

    Attributes:
        stored: plain [rows, columns], or NZ blocks [ceil(columns/C0), ceil(rows/16), 16, C0].
        rows, columns: logical size in stored elements: a byte of two 4-bit elements, or an int32 word of eight, counts
            once.
    """

    stored: Tensor
    rows: int
    columns: int

    @property
    def is_plain(self) -> bool:
        """Whether the bytes lie in row order."""
        return self.stored.dim() == 2

    def take_columns(self, start: int, stop: int) -> Tensor:
        """[rows, stop - start], in the stored dtype; a view where the storage is plain."""
        if self.is_plain:
            return self.stored[:, start:stop]
        return nz_columns(self.stored, self.rows, start, stop)

    def take_rows(self, start: int, stop: int) -> Tensor:
        """[stop - start, columns], in the stored dtype; a view where the storage is plain."""
        if self.is_plain:
            return self.stored[start:stop]
        return nz_rows(self.stored, self.columns, start, stop)

    def bytes(self) -> "Blocks":
        """The same matrix as uint8, for carriers and dtypes that torch cannot compute with."""
        return Blocks(self.stored.view(torch.uint8), self.rows, self.columns * self.stored.dtype.itemsize)


def blocks_of(weight: Tensor) -> Blocks:
    """One matrix, formatted or plain, to be read in pieces.

    Raises:
        LayoutError: no matrix.
    """
    if weight.dim() != 2:
        raise LayoutError(f"cannot read blocks of shape {list(weight.shape)}; index a stack by its expert first.")
    return Blocks(inner(weight), *weight.shape)
