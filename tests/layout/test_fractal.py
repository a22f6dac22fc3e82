"""FRACTAL_NZ against its index formula (operator documents; docs/layouts.md): every element arrives exactly once."""

import numpy as np
import pytest
import torch
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vllm_megamoe.layout.cast import from_nz, to_nz
from vllm_megamoe.layout.packing import pack_nibbles

SHAPES = [(48, 96, 16), (17, 64, 32), (16, 65, 32), (33, 130, 64), (5, 7, 16), (80, 40, 8)]


def offsets(rows: int, columns: int, c0: int) -> NDArray[np.int64]:
    """off(r, c) = (c / C0) * (R16 * C0) + (r / 16) * (16 * C0) + (r % 16) * C0 + c % C0."""
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    tall = -(-rows // 16) * 16
    return (c // c0) * (tall * c0) + (r // 16) * (16 * c0) + (r % 16) * c0 + c % c0


def index_matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(1, rows * columns + 1, dtype=torch.int32).view(rows, columns)


@pytest.mark.parametrize(("rows", "columns", "c0"), SHAPES)
def test_every_element_lies_where_the_formula_says(rows: int, columns: int, c0: int) -> None:
    matrix = index_matrix(rows, columns)
    stored = to_nz(matrix, c0)
    assert stored.shape == (-(-columns // c0), -(-rows // 16), 16, c0)
    assert np.array_equal(stored.flatten().numpy()[offsets(rows, columns, c0)], matrix.numpy())


@pytest.mark.parametrize(("rows", "columns", "c0"), SHAPES)
def test_every_element_arrives_once_and_the_rest_is_zero(rows: int, columns: int, c0: int) -> None:
    stored = to_nz(index_matrix(rows, columns), c0).flatten().sort().values
    padding = stored.numel() - rows * columns
    assert not stored[:padding].any()
    assert stored[padding:].equal(torch.arange(1, rows * columns + 1, dtype=torch.int32))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(2048, 64, torch.int8), (4096, 33, torch.int8), (1024, 48, torch.int16)]
)
def test_a_transpose_whose_rows_collide_in_the_cache_lies_there_too(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    """Rows a multiple of 2048 bytes apart go to their blocks by another way."""
    c0 = 32 // dtype.itemsize
    source = torch.randint(-128, 128, (columns, rows), generator=torch.Generator().manual_seed(0)).to(dtype)
    place = torch.zeros(-(-columns // c0), rows // 16, 16, c0, dtype=dtype)
    to_nz(source.t(), c0, place)
    expected = source.t().contiguous().numpy()
    assert np.array_equal(place.flatten().numpy()[offsets(rows, columns, c0)], expected)


def test_a_fractal_is_512_bytes() -> None:
    # 16 rows of 32 bytes, whatever the element: BF16 16 columns, INT8 32, INT4 64.
    for itemsize, c0 in ((2, 16), (1, 32), (0.5, 64)):
        assert to_nz(index_matrix(32, 128), c0)[0, 0].numel() * itemsize == 512


@settings(max_examples=examples(40, 400), deadline=None)
@given(st.integers(1, 50), st.integers(1, 100), st.sampled_from([8, 16, 32, 64]), st.integers(0, 3))
def test_round_trip(rows: int, columns: int, c0: int, experts: int) -> None:
    matrix = index_matrix(max(experts, 1) * rows, columns)
    if experts:
        matrix = matrix.view(experts, rows, columns)
    assert from_nz(to_nz(matrix, c0), rows, columns).equal(matrix)


@pytest.mark.parametrize(("byte_block", "nibble_block"), [(32, 64), (16, 32)])
def test_blocks_of_packed_bytes_are_blocks_of_twice_as_many_nibbles(byte_block: int, nibble_block: int) -> None:
    # FRACTAL_NZ of bytes is FRACTAL_NZ of nibbles; C0_16 of bytes is what the operator calls C0_32.
    nibbles = torch.randint(0, 16, (40, 192), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    of_bytes = to_nz(pack_nibbles(nibbles), byte_block)
    assert of_bytes.equal(pack_nibbles(to_nz(nibbles, nibble_block)))
