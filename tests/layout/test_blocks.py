"""Pieces of a weight equal pieces of the plain matrix, in every format and carrier."""

import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout import format_cast
from vllm_megamoe.layout.blocks import blocks_of
from vllm_megamoe.layout.nibbles import pack_int4, unpack_int4

RANGES = [(0, 64), (0, 7), (31, 33), (40, 64), (10, 10)]


def plain(dtype: torch.dtype) -> Tensor:
    return (torch.arange(48 * 64 * dtype.itemsize, dtype=torch.int32) % 241).to(torch.uint8).view(dtype).view(48, 64)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("fmt", [2, 29, 50, 51])
@pytest.mark.parametrize(("start", "stop"), RANGES)
def test_a_piece_is_the_piece(dtype: torch.dtype, fmt: int, start: int, stop: int) -> None:
    matrix = plain(dtype)
    blocks = blocks_of(format_cast(matrix, fmt))
    assert (blocks.rows, blocks.columns, blocks.is_plain) == (48, 64, fmt == 2)
    assert (
        blocks.take_columns(start, stop).view(torch.uint8).equal(matrix[:, start:stop].contiguous().view(torch.uint8))
    )
    rows = slice(min(start, 48), min(stop, 48))
    assert blocks.take_rows(rows.start, rows.stop).view(torch.uint8).equal(matrix[rows].view(torch.uint8))


@pytest.mark.parametrize("fmt", [2, 29])
def test_float8_is_read_as_bytes(fmt: int) -> None:
    matrix = plain(torch.uint8)
    blocks = blocks_of(format_cast(matrix.view(torch.float8_e4m3fn), fmt)).bytes()
    assert blocks.take_rows(5, 40).equal(matrix[5:40])


@pytest.mark.parametrize("fmt", [2, 29])
@pytest.mark.parametrize("carrier", [torch.int8, torch.int32])
def test_int4_is_read_from_either_carrier(fmt: int, carrier: torch.dtype) -> None:
    values = (torch.arange(48 * 128, dtype=torch.int32) * 7 % 16 - 8).to(torch.int8).view(48, 128)
    blocks = blocks_of(format_cast(pack_int4(values), fmt).view(carrier)).bytes()
    assert blocks.columns == 64
    assert unpack_int4(blocks.take_columns(20, 50)).equal(values[:, 40:100])


def test_a_stack_is_no_matrix() -> None:
    with pytest.raises(LayoutError, match="expert"):
        blocks_of(torch.zeros(2, 3, 4))
