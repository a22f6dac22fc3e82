"""FRACTAL_NZ as pure functions: blocks of C0 columns, each stored as a plain matrix of rows.

A block of columns is contiguous; a range of rows is one stretch out of every block.

    logical [R, C]  ->  stored [ceil(C/C0), ceil(R/16), 16, C0]
    off(r, c) = (c / C0) * (R16 * C0) + (r / 16) * (16 * C0) + (r % 16) * C0 + c % C0,   R16 = R rounded up to 16

Source: operator documents, format FRACTAL_NZ (zN order); docs/layouts.md draws it.
"""

from torch import Tensor
from torch.nn.functional import pad

FRACTAL_ROWS = 16


def to_nz(matrix: Tensor, c0: int) -> Tensor:
    """[..., R, C] -> [..., ceil(C/c0), ceil(R/16), 16, c0], zeros where there is nothing."""
    *lead, rows, columns = matrix.shape
    padded = pad(matrix, (0, -columns % c0, 0, -rows % FRACTAL_ROWS))
    blocks = padded.reshape(*lead, -(-rows // FRACTAL_ROWS), FRACTAL_ROWS, -(-columns // c0), c0)
    # [..., R/16, 16, C/c0, c0] -> [..., C/c0, R/16, 16, c0]
    return blocks.movedim(-2, -4).contiguous()


def from_nz(stored: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse: [..., ceil(columns/c0), ceil(rows/16), 16, c0] -> contiguous [..., rows, columns]."""
    matrix = stored.movedim(-4, -2).flatten(-2).flatten(-3, -2)
    return matrix[..., :rows, :columns].contiguous()
