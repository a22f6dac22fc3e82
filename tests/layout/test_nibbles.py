"""INT4 and FP4 packing: published bytes, both conventions, both carriers."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.packing import (
    as_int8,
    as_int32,
    pack_e2m1,
    pack_int4,
    sum_int4_rows,
    unpack_e2m1,
    unpack_int4,
)
from vllm_megamoe.numerics.mx import decode

PUBLISHED = torch.tensor([[1, -2, 3, -4, 5, -6, 7, -8]], dtype=torch.int8)


def documents_pack(x: torch.Tensor) -> torch.Tensor:
    """pack_int4_to_int8 of torch_api.txt's example, by its formula: ((x1 + 8) << 4) | (x0 + 8)."""
    pairs = (x + 8).to(torch.uint8).reshape(x.shape[0], -1, 2)
    return ((pairs[..., 1] << 4) | pairs[..., 0]).view(torch.int8)


def test_twos_complement_bytes_are_those_of_vllm_ascend() -> None:
    assert pack_int4(PUBLISHED).view(torch.uint8).tolist() == [[225, 195, 165, 135]]


def test_the_documents_bytes_differ_in_the_sign_bit_of_every_nibble() -> None:
    documents = documents_pack(PUBLISHED)
    assert pack_int4(PUBLISHED, offset_binary=True).equal(documents)
    assert (pack_int4(PUBLISHED).view(torch.uint8) ^ 0x88).equal(documents.view(torch.uint8))


def test_the_documents_bytes_read_as_the_kernel_reads_are_off_by_eight() -> None:
    values = torch.tensor([[-7, 0, 7, -8]], dtype=torch.int8)
    assert unpack_int4(documents_pack(values)).tolist() == [[1, -8, -1, 0]]
    assert unpack_int4(documents_pack(values), offset_binary=True).equal(values)


@pytest.mark.parametrize("offset_binary", [False, True])
def test_every_byte_survives_the_round_trip(offset_binary: bool) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(16, 16).view(torch.int8)
    values = unpack_int4(every, offset_binary)
    assert values.shape == (16, 32)
    assert (int(values.min()), int(values.max())) == (-8, 7)
    assert pack_int4(values, offset_binary).equal(every)


def test_nibbles_are_ml_dtypes_int4() -> None:
    every = np.arange(16, dtype=np.uint8)
    want = every.view(ml_dtypes.int4).astype(np.int8)
    packed = torch.from_numpy(every[0::2] | every[1::2] << 4).view(torch.int8)
    assert np.array_equal(unpack_int4(packed).numpy(), want)


def test_int32_words_hold_element_n_in_nibble_n() -> None:
    words = as_int32(pack_int4(PUBLISHED))
    assert words.shape == (1, 1)
    assert [((int(words) >> 4 * n) & 15 ^ 8) - 8 for n in range(8)] == PUBLISHED[0].tolist()
    assert as_int8(words).equal(pack_int4(PUBLISHED))


def test_e2m1_bytes_are_odd_above_even() -> None:
    codes = torch.tensor([[2, 13]], dtype=torch.uint8)  # 1.0 and -3.0
    assert pack_e2m1(codes).tolist() == [[0xD2]]
    assert decode(unpack_e2m1(torch.tensor([[0xD2]], dtype=torch.uint8)), "e2m1").tolist() == [[1.0, -3.0]]


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=40))
def test_e2m1_round_trip(pairs: list[tuple[int, int]]) -> None:
    codes = torch.tensor(pairs, dtype=torch.uint8).flatten()
    assert pack_e2m1(codes).tolist() == [odd * 16 + even for even, odd in pairs]
    assert unpack_e2m1(pack_e2m1(codes)).equal(codes)


@pytest.mark.parametrize(
    ("pack", "columns", "word"), [(pack_int4, 7, "even"), (pack_e2m1, 3, "even"), (as_int32, 6, "multiple of 8")]
)
def test_what_does_not_fill_is_rejected(pack: object, columns: int, word: str) -> None:
    dtype = torch.uint8 if pack is pack_e2m1 else torch.int8
    with pytest.raises(LayoutError, match=word):
        pack(torch.zeros(2, columns, dtype=dtype))  # type: ignore[operator]


@pytest.mark.parametrize(("bytes_high", "columns"), [(1, 1), (3, 40), (5, 128), (2, 1000), (70, 2048), (3, 70_000)])
def test_sums_of_packed_rows(bytes_high: int, columns: int) -> None:
    """By ml_dtypes' INT4, the longest sums of the smallest and the largest values included."""
    rng = np.random.default_rng(columns)
    packed = rng.integers(0, 256, (bytes_high, columns), dtype=np.uint8)
    packed[0] = 0x88 if columns % 2 else 0x77
    halves = np.stack([packed & 0x0F, packed >> 4], axis=1).view(ml_dtypes.int4).astype(np.int64)
    found = sum_int4_rows(torch.from_numpy(packed).view(torch.int8))
    assert found.dtype == torch.int32
    assert found.tolist() == halves.sum(axis=2).flatten().tolist()


def test_sums_of_rows_in_a_wider_matrix() -> None:
    wide = torch.arange(64, dtype=torch.int8).view(4, 16)
    assert sum_int4_rows(wide[:, 3:11]).equal(sum_int4_rows(wide[:, 3:11].clone()))
