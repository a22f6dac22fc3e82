"""Bytes that travel for a row: parts of several dtypes behind one another, uint8 [rows, bytes]."""

import math

import torch
from torch import Tensor

Widths = list[tuple[int, torch.dtype]]


def join(*parts: Tensor) -> Tensor:
    """Tensors [rows, ...] with the same number of rows -> uint8 [rows, bytes]."""
    flat = [part.reshape(part.shape[0], math.prod(part.shape[1:])).contiguous().view(torch.uint8) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def cut(records: Tensor, widths: Widths) -> list[Tensor]:
    """The inverse of `join`.

    Args:
        records: uint8 [rows, bytes].
        widths: elements and dtype of each part, in order.
    """
    parts, at = [], 0
    for elements, dtype in widths:
        size = elements * dtype.itemsize
        # The copy is needed: a view as a wider dtype wants aligned rows, and `contiguous` would leave a single row.
        parts.append(records[:, at : at + size].clone(memory_format=torch.contiguous_format).view(dtype))
        at += size
    return parts
