"""format_cast: put a tensor into a storage format and take it back, by torch_npu or `FormattedTensor`.

FRACTAL_NZ is blocks of C0 columns, each stored as a plain matrix of rows: a block of columns is contiguous, a range of
rows is one stretch out of every block.

    logical [R, C]  ->  stored [ceil(C/C0), ceil(R/16), 16, C0]
    off(r, c) = (c / C0) * (R16 * C0) + (r / 16) * (16 * C0) + (r % 16) * C0 + c % C0,   R16 = R rounded up to 16

Source: operator documents, format FRACTAL_NZ (zN order); docs/layouts.md draws it. On an NPU torch_npu casts, and is
asked afterwards whether it did.
"""

import importlib
import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.acl import AclFormat, block_columns
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.formatted import FormattedTensor, inner

FRACTAL_ROWS = 16


def to_nz(matrix: Tensor, c0: int, out: Tensor | None = None) -> Tensor:
    """[..., R, C] -> [..., ceil(C/c0), ceil(R/16), 16, c0], zeros where there is nothing; into `out` where given.

    A transposed matrix goes to its blocks in one step.
    """
    *lead, rows, columns = matrix.shape
    short = -columns % c0, -rows % FRACTAL_ROWS
    if any(short):
        matrix = pad(matrix, (0, short[0], 0, short[1]))
    high, wide = -(-rows // FRACTAL_ROWS), -(-columns // c0)
    shape = (*lead, wide, high, FRACTAL_ROWS, c0)
    place = torch.empty(shape, dtype=matrix.dtype, device=matrix.device) if out is None else out
    if out is not None and _collides(matrix):
        matrix = _spread(matrix)
    if out is not None and _in_words(matrix, c0):
        # Rows of a block are moved eight bytes at a time; not where torch.compile traces, which cannot follow.
        matrix, moved = matrix.view(torch.int64), place.view(torch.int64)
    else:
        moved = place
    blocks = matrix.reshape(*lead, high, FRACTAL_ROWS, wide, moved.shape[-1])
    # [..., R/16, 16, C/c0, c0] -> [..., C/c0, R/16, 16, c0]
    moved.copy_(blocks.movedim(-2, -4))
    return place


def _in_words(matrix: Tensor, c0: int) -> bool:
    """Whether rows of blocks lie in whole int64 words of the matrix's memory."""
    size = matrix.element_size()
    starts = matrix.storage_offset(), c0, *matrix.stride()[:-1]
    return matrix.stride(-1) == 1 and all(number * size % 8 == 0 for number in starts)


_COLLIDES, _LINE = 2048, 64
"""Bytes. Numbers that lie a multiple of the first apart fall on few lines of a processor's first cache: a transpose
that gathers from 32 rows reads each of their lines many times (2 to 4 times as long for 2048 and 4096 inputs)."""


def _collides(matrix: Tensor) -> bool:
    """Whether it is the transpose of a matrix whose rows collide in the cache."""
    return matrix.dim() == 2 and matrix.stride(0) == 1 and matrix.stride(1) * matrix.element_size() % _COLLIDES == 0


def _spread(matrix: Tensor) -> Tensor:
    """A transposed matrix [R, C] in new memory, its rows a line of the cache further apart."""
    rows, columns = matrix.shape
    wide = torch.empty((columns, rows + _LINE // matrix.element_size()), dtype=matrix.dtype, device=matrix.device)
    return wide[:, :rows].copy_(matrix.t()).t()


def from_nz(stored: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse: [..., ceil(columns/c0), ceil(rows/16), 16, c0] -> contiguous [..., rows, columns]."""
    matrix = stored.movedim(-4, -2).flatten(-2).flatten(-3, -2)
    return matrix[..., :rows, :columns].contiguous()


# Ids of plain storage that torch_npu names after a tensor's rank: NCHW, ND, NCL, NCDHW (contract with torch_npu).
_PLAIN = frozenset({0, 2, 30, 47})


def _torch_npu() -> Any:
    return importlib.import_module("torch_npu")


NPUS = {"npu"}
"""Device types whose formats torch_npu keeps. A simulated NPU's memory is the CPU's, and its installation adds that."""


def on_npu(device: torch.device) -> bool:
    """Whether torch_npu casts the tensors there and knows their formats."""
    return device.type in NPUS


def npu_format_cast(tensor: Tensor, fmt: AclFormat) -> Tensor:
    """Cast on the device; of FP4, two in a byte, FRACTAL_NZ_C0_16 as well.

    Raises:
        LayoutError: the tensor is in another format afterwards.
    """
    torch_npu = _torch_npu()
    # Builds whose default is off cast to an internal format without doing anything (torch_api.txt sets it as well).
    torch_npu.npu.config.allow_internal_format = True
    target, types = fmt, {}
    if fmt is AclFormat.FRACTAL_NZ_C0_16:
        # The device casts to FRACTAL_NZ alone; narrow blocks follow from the types: 32 B of FP8 are 32 elements of FP4,
        # which torch_npu reports as 16 bytes (operator's mega_moe.md, A8W4 example).
        target, types = AclFormat.FRACTAL_NZ, {"customize_dtype": torch.float8_e4m3fn}
        types["input_dtype"] = torch_npu.float4_e2m1fn_x2
    # A view keeps its storage's first shape, and torch_npu leaves such a tensor in ND without a word
    # (FormatCastKernelNpu.cpp, ShouldFallbackNzToNd).
    own = tensor.clone(memory_format=torch.contiguous_format) if target is AclFormat.FRACTAL_NZ else tensor
    cast: Tensor = torch_npu.npu_format_cast(own, int(target), **types)
    found = npu_format_of(cast)
    if found is not fmt:
        raise LayoutError(
            f"npu_format_cast left a {tensor.dtype} tensor {list(tensor.shape)} in {found.name}; expected {fmt.name}. "
            "Set torch_npu.npu.config.allow_internal_format = True before the first tensor is made."
        )
    return cast


def npu_format_of(tensor: Tensor) -> AclFormat:
    """The format that torch_npu reports, plain ones as ND.

    Raises:
        LayoutError: a format that this package does not know.
    """
    found = int(_torch_npu().get_npu_format(tensor))
    if found in _PLAIN:
        return AclFormat.ND
    if found not in set(AclFormat):
        raise LayoutError(f"a tensor {list(tensor.shape)} is in format {found}; expected ND or a FRACTAL_NZ format.")
    return AclFormat(found)


# Layout moves bytes: an integer of the element's size stands for dtypes that torch cannot pad.
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def format_cast(tensor: Tensor, fmt: AclFormat | int) -> Tensor:
    """The same logical tensor [R, C] or [E, R, C] with its bytes in another format.

    Args:
        tensor: of 1, 2 or 4 bytes an element. 4-bit elements come packed, and blocks are counted in bytes then:
            FRACTAL_NZ_C0_16 gives what the operator calls C0_32.
        fmt: an AclFormat or its number. ND gives a plain tensor back.

    Raises:
        LayoutError: an unknown format, dtype or rank; on an NPU also a cast that did not take place.
    """
    target = _known(fmt)
    return npu_format_cast(tensor, target) if on_npu(tensor.device) else host_format_cast(tensor, target)


def host_format_cast(tensor: Tensor, fmt: AclFormat) -> Tensor:
    """The same without torch_npu, by `FormattedTensor`.

    Raises:
        LayoutError: a dtype or rank that has no blocks.
    """
    if host_format_of(tensor) == fmt:
        return tensor
    plain = _to_plain(tensor) if isinstance(tensor, FormattedTensor) else tensor
    return plain if fmt == AclFormat.ND else _to_blocks(plain, fmt)


def format_into(place: Tensor, tensor: Tensor) -> None:
    """As `place.copy_(format_cast(tensor, format_of(place)))` without the memory between the two, on the CPU.

    Raises:
        LayoutError: shape or dtype differ.
    """
    if (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
        raise LayoutError(
            f"a plain {list(tensor.shape)} of {tensor.dtype} cannot be put into {list(place.shape)} of {place.dtype}; "
            "expected one shape and dtype. Convert the experts of each layer by themselves."
        )
    if isinstance(place, FormattedTensor):
        _to_blocks(tensor, format_of(place), inner(place))
    else:
        place.copy_(tensor)


def format_of(tensor: Tensor) -> AclFormat:
    """The format that the tensor's bytes are in; of a packed 4-bit tensor the one that its bytes show.

    Raises:
        LayoutError: on an NPU, a format that has no place in this package.
    """
    return npu_format_of(tensor) if on_npu(tensor.device) else host_format_of(tensor)


def host_format_of(tensor: Tensor) -> AclFormat:
    """The same without torch_npu: plain tensors are ND."""
    return AclFormat(tensor.acl_format) if isinstance(tensor, FormattedTensor) else AclFormat.ND


def stack_experts(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices [R, C] of one format, shape and dtype -> [E, R, C] in that format; copies.

    Raises:
        LayoutError: the list is empty or mixed.
    """
    kinds = {(format_of(tensor), tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(kinds) != 1:
        found = "; ".join(f"{fmt.name} {list(shape)} {dtype}" for fmt, shape, dtype in sorted(kinds, key=str))
        raise LayoutError(
            f"cannot stack experts of {len(kinds)} kinds ({found}); expected one format, shape and dtype."
        )
    stacked = torch.stack([inner(tensor) for tensor in tensors])
    first = tensors[0]
    if isinstance(first, FormattedTensor):
        return FormattedTensor(stacked, format_of(first), [len(tensors), *first.shape])
    return stacked


def empty_stack(first: Tensor, count: int) -> Tensor:
    """Room for `count` matrices like this one, [count, R, C] in its format; its matrices are filled with copy_."""
    if isinstance(first, FormattedTensor):
        return FormattedTensor(empty_stack(inner(first), count), format_of(first), [count, *first.shape])
    shape = count, *first.shape
    if not on_npu(first.device):
        return _in_large_pages(shape, first.dtype)
    made = torch.empty(shape, dtype=first.dtype, device=first.device)
    return made if format_of(first) == AclFormat.ND else format_cast(made, format_of(first))


_LARGE_PAGE = 2 * 2**20
"""Bytes, of x86-64 and of aarch64 with pages of 4 KiB."""


def _in_large_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As torch.empty on the CPU, in pages of 2 MiB where the kernel gives them to who asks.

    Taking 600 MiB in small pages costs a fifth of a second to a half, in large ones a fifteenth of that; and weights
    that are read once a call need an entry of the processor's page table for each page.
    """
    nbytes, advice = math.prod(shape) * dtype.itemsize, getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it
    if nbytes < _LARGE_PAGE or advice is None:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages: small ones hold the same
        memory.madvise(advice)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


def _known(fmt: AclFormat | int) -> AclFormat:
    if int(fmt) not in set(AclFormat):
        known = ", ".join(f"{f.name}={int(f)}" for f in AclFormat)
        raise LayoutError(f"format {fmt!r} is unknown; expected one of {known}.")
    return AclFormat(int(fmt))


def _to_blocks(tensor: Tensor, fmt: AclFormat, place: Tensor | None = None) -> FormattedTensor:
    """`place`: plain memory for the blocks."""
    size = tensor.dtype.itemsize
    if tensor.dim() not in (2, 3) or size not in _CARRIER:
        raise LayoutError(
            f"cannot cast shape {list(tensor.shape)} of {tensor.dtype} to {fmt.name}; "
            "expected a matrix or a stack of matrices with elements of 1, 2 or 4 bytes."
        )
    carrier, out = (None if t is None else t.detach().view(_CARRIER[size]) for t in (tensor, place))
    assert carrier is not None
    return FormattedTensor(to_nz(carrier, block_columns(fmt, size), out).view(tensor.dtype), fmt, tensor.shape)


def _to_plain(tensor: FormattedTensor) -> Tensor:
    rows, columns = tensor.shape[-2:]
    carrier = inner(tensor).view(_CARRIER[tensor.dtype.itemsize])
    return from_nz(carrier, rows, columns).view(tensor.dtype)
