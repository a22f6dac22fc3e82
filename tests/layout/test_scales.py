"""64-bit channel scales and paired E8M0 scales, element by element."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.packing import from_uint64, pair_scales, to_uint64, unpair_scales


def test_a_published_scale() -> None:
    assert to_uint64(torch.tensor([0.0123])).tolist() == [0x3C4985F0]


def test_the_documents_expression_gives_the_same_words() -> None:
    scale = torch.tensor([0.5, 3.25e-7, 1234.5])
    documents = scale.view(torch.int32).to(torch.int64).view(torch.uint64)  # torch_api.txt, int8 example
    assert to_uint64(scale).view(torch.uint64).equal(documents)
    assert from_uint64(documents).equal(scale)


def test_high_words_stay_empty_and_are_ignored() -> None:
    # A negative float would sign-extend through int64.
    assert to_uint64(torch.tensor([-1.0])).tolist() == [0xBF800000]
    assert from_uint64(torch.tensor([0x0000400000000000 + 0x3F800000])).tolist() == [1.0]


@given(st.lists(st.floats(width=32, min_value=0, allow_infinity=False), min_size=1))
def test_channel_scales_survive(values: list[float]) -> None:
    scale = torch.tensor(values)
    assert from_uint64(to_uint64(scale)).view(torch.int32).equal(scale.view(torch.int32))


@pytest.mark.parametrize("call", [lambda: to_uint64(torch.ones(2).bfloat16()), lambda: from_uint64(torch.ones(2))])
def test_other_dtypes_are_rejected(call: object) -> None:
    with pytest.raises(LayoutError, match="dtype"):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 7])
def test_entry_j_i_scales_the_32_from_64j_32i(groups: int) -> None:
    scales = torch.arange(5 * groups, dtype=torch.uint8).view(5, groups)
    pairs = pair_scales(scales)
    assert pairs.shape == (5, -(-groups // 2), 2)
    for k in range(0, groups * 32, 32):
        assert pairs[:, k // 64, k % 64 // 32].equal(scales[:, k // 32])
    assert unpair_scales(pairs, groups).equal(scales)


def test_the_filling_byte_is_one_and_never_nan() -> None:
    assert pair_scales(torch.zeros(2, 3, 5, dtype=torch.uint8))[:, :, 2, 1].eq(127).all()


def test_pairs_are_the_row_major_list() -> None:
    scales = torch.arange(12, dtype=torch.uint8).view(2, 6)
    assert np.array_equal(pair_scales(scales).flatten().numpy(), np.arange(12))
