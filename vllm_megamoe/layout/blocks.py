"""Plain pieces of a weight in any storage format, so that nobody has to unpack a whole one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.layout.fractal import nz_columns, nz_rows


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, columns] in its stored form.

    Attributes:
        stored: plain [rows, columns], or NZ blocks [ceil(columns/C0), ceil(rows/16), 16, C0].
        rows, columns: logical size in stored elements (a byte of two 4-bit elements counts once).
    """

    stored: Tensor
    rows: int
    columns: int

    @property
    def is_plain(self) -> bool:
        return self.stored.dim() == 2

    def take_columns(self, start: int, stop: int) -> Tensor:
        """[rows, stop - start]; a view where the storage is plain."""
        if self.is_plain:
            return self.stored[:, start:stop]
        return nz_columns(self.stored, self.rows, start, stop)

    def take_rows(self, start: int, stop: int) -> Tensor:
        """[stop - start, columns]; a view where the storage is plain."""
        if self.is_plain:
            return self.stored[start:stop]
        return nz_rows(self.stored, self.columns, start, stop)

    def bytes(self) -> "Blocks":
        """The same matrix as uint8, for dtypes that torch cannot compute with."""
        return Blocks(self.stored.view(torch.uint8), self.rows, self.columns)
