"""Bytes that the host code takes for another format or dtype than they have."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclFormat, block_columns
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.formatted import FormattedTensor, inner


def relabel(tensor: Tensor, dtype: torch.dtype, fmt: AclFormat, shape: Sequence[int]) -> Tensor:
    """The same bytes as a tensor of another dtype, format and shape; what lies behind its end reads as 0."""
    if (tensor.dtype, format_of(tensor), tuple(tensor.shape)) == (dtype, fmt, tuple(shape)):
        return tensor
    held = inner(tensor).contiguous().view(torch.uint8).flatten()
    blocks = _blocks(fmt, dtype.itemsize, shape)
    wanted = math.prod(blocks) * dtype.itemsize
    behind = torch.zeros(max(wanted - len(held), 0), dtype=torch.uint8)
    stored = torch.cat([held[:wanted], behind]).view(dtype).view(blocks)
    return stored if fmt == AclFormat.ND else FormattedTensor(stored, fmt, shape)


def as_first_entry(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A list as A2/A3 read it: dtype and format of the first entry hold for all (op aclnn)."""
    first = tensors[0]
    return [relabel(tensor, first.dtype, format_of(first), tensor.shape) for tensor in tensors]


def int32_as_blocks(tensors: Sequence[Tensor]) -> list[Tensor]:
    """INT4 in int32 is taken for FRACTAL_NZ whatever it is (op aclnn)."""
    return [
        relabel(tensor, tensor.dtype, AclFormat.FRACTAL_NZ, tensor.shape) if tensor.dtype == torch.int32 else tensor
        for tensor in tensors
    ]


def _blocks(fmt: AclFormat, itemsize: int, shape: Sequence[int]) -> list[int]:
    if fmt == AclFormat.ND:
        return list(shape)
    c0 = block_columns(fmt, itemsize)
    *lead, rows, columns = shape
    return [*lead, -(-columns // c0), -(-rows // 16), 16, c0]
