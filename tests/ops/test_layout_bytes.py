"""Bytes of formatted operands against the oracle's index formulas, for elements of 16, 8 and 4 bits."""

import numpy as np
import pytest
import torch
from oracle import packing
from torch import Tensor

from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.layout.formatted import inner

# format, numbers of a fractal's row for elements of 2 and 1 bytes (op csrc; ACL's format numbers)
BLOCKS = [(AclFormat.FRACTAL_NZ, 2, 16), (AclFormat.FRACTAL_NZ, 1, 32), (AclFormat.FRACTAL_NZ_C0_16, 1, 16)]


def stored(tensor: Tensor) -> np.ndarray:
    """The bytes in the order in which they lie."""
    return inner(tensor).contiguous().view(torch.uint8).numpy().ravel()


@pytest.mark.parametrize("lead", [(), (3,)], ids=["matrix", "stack"])
@pytest.mark.parametrize(("rows", "columns"), [(48, 96), (33, 64), (16, 160)])
@pytest.mark.parametrize(("fmt", "size", "c0"), BLOCKS)
def test_block_formats(fmt: AclFormat, size: int, c0: int, rows: int, columns: int, lead: tuple[int, ...]) -> None:
    rng = np.random.default_rng(rows * columns)
    matrix = rng.integers(1, 127, (*lead, rows, columns)).astype({1: np.uint8, 2: np.int16}[size])
    cast = format_cast(torch.from_numpy(matrix), fmt)
    assert np.array_equal(stored(cast), packing.to_nz(matrix, c0).view(np.uint8).ravel())
    assert tuple(cast.shape) == matrix.shape
    assert format_cast(cast, AclFormat.ND).numpy().tobytes() == matrix.tobytes()


@pytest.mark.parametrize(("fmt", "nibbles"), [(AclFormat.FRACTAL_NZ, 64), (AclFormat.FRACTAL_NZ_C0_16, 32)])
def test_packed_nibbles(fmt: AclFormat, nibbles: int) -> None:
    # op csrc: the byte tensor with 16-byte blocks is the nibble tensor with 32-nibble blocks
    codes = np.random.default_rng(0).integers(-8, 8, (48, 192))
    cast = format_cast(torch.from_numpy(packing.pack_nibbles(codes)), fmt)
    assert np.array_equal(stored(cast), packing.pack_nibbles(packing.to_nz(codes, nibbles)).ravel())


def test_the_int32_view_keeps_the_bytes() -> None:
    codes = packing.pack_nibbles(np.random.default_rng(1).integers(-8, 8, (48, 192))).view(np.int8)
    cast = format_cast(torch.from_numpy(codes), AclFormat.FRACTAL_NZ)
    view = cast.view(torch.int32)
    assert tuple(view.shape) == (48, 24)
    assert np.array_equal(stored(view), stored(cast))


@pytest.mark.parametrize(
    ("fmt", "number"),
    [("ND", 2), ("FRACTAL_NZ", 29), ("FRACTAL_NZ_C0_16", 50), ("FRACTAL_NZ_C0_32", 51)],
)
def test_format_numbers(fmt: str, number: int) -> None:
    assert AclFormat[fmt] == number
