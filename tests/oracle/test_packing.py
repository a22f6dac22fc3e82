"""The oracle's packings against published bytes and against each other."""

import numpy as np
import pytest
from oracle import packing


def test_int4_bytes_are_those_of_the_failure_log() -> None:
    # vllm-ascend, two's complement, low nibble first
    codes = np.int8([1, -2, 3, -4, 5, -6, 7, -8])
    assert packing.pack_nibbles(codes).tolist() == [225, 195, 165, 135]


def test_excess8_differs_in_the_sign_bit_of_every_nibble() -> None:
    codes = np.arange(-8, 8, dtype=np.int8)
    assert np.array_equal(packing.pack_excess8(codes), packing.pack_nibbles(codes) ^ 0x88)


def test_excess8_read_as_twos_complement_is_off_by_eight() -> None:
    codes = np.int8([-7, 0, 7, -8])
    wrong = [(int(n) ^ 8) - 8 for byte in packing.pack_excess8(codes) for n in (byte & 15, byte >> 4)]
    assert wrong == [1, -8, -1, 0]


def test_scale_bits_are_zero_extended() -> None:
    assert packing.scale_bits(np.float32([0.0123])).tolist() == [0x3C4985F0]


def test_scales_are_paired_and_filled_with_one() -> None:
    scales = np.uint8([[1, 2, 3], [4, 5, 6]])
    assert packing.pair_scales(scales).tolist() == [[[1, 2], [3, 127]], [[4, 5], [6, 127]]]


@pytest.mark.parametrize(("rows", "cols", "c0"), [(32, 96, 16), (17, 64, 32), (48, 65, 32)])
def test_nz_keeps_every_element_once(rows: int, cols: int, c0: int) -> None:
    matrix = np.arange(1, rows * cols + 1).reshape(rows, cols)
    packed = packing.to_nz(matrix, c0)
    assert packed.shape == (-(-cols // c0), -(-rows // 16), 16, c0)
    assert np.array_equal(np.sort(packed[packed != 0]), matrix.ravel())
    assert packed[0, 0, 0, 1] == matrix[0, 1]  # a fractal row is contiguous
    assert packed[0, 0, 1, 0] == matrix[1, 0]
    assert packed[1, 0, 0, 0] == matrix[0, c0]
    assert packed[0, 1, 0, 0] == matrix[16, 0]


def test_int4_nz_is_the_nz_of_the_packed_bytes() -> None:
    codes = np.random.default_rng(0).integers(-8, 8, (48, 192)).astype(np.int8)
    of_bytes = packing.to_nz(packing.pack_nibbles(codes), 32)
    of_nibbles = packing.pack_nibbles(packing.to_nz(codes, 64))
    assert np.array_equal(of_bytes, of_nibbles)


def test_bias_restores_the_split_product() -> None:
    rng = np.random.default_rng(1)
    q = rng.integers(-127, 128, (3, 96))
    weight = rng.integers(-8, 8, (40, 96)).astype(np.int8)
    high, low = np.floor_divide(q, 16), (q & 15) - 8
    bias = packing.bias8(weight, np.ones(40, np.float32))
    assert np.array_equal(16 * (high @ weight.T) + low @ weight.T + bias, q @ weight.T.astype(np.int64))
    assert not np.array_equal(16 * (high @ weight.T) + low @ weight.T, q @ weight.T.astype(np.int64))
