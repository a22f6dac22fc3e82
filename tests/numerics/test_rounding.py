"""Roundings that torch has no name for, against their definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_megamoe.numerics.int8 import half_away, to_fp16, truncate_scale, truncate_to_fp16

FLOATS = st.floats(width=32, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.5, 1),
        (-0.5, -1),
        (1.5, 2),
        (2.5, 3),
        (0.49999997, 0),
        (8388607.5, 8388608),
        (16777217.0, 16777216),
        (-0.0, 0),
    ],
)
def test_half_away(value: float, want: float) -> None:
    assert half_away(torch.tensor([value])).item() == want


@given(st.floats(-1e6, 1e6, width=32))
def test_half_away_is_within_half_and_odd(value: float) -> None:
    x = torch.tensor([value])
    assert abs(half_away(x).double().item() - value) <= 0.5
    assert half_away(-x).equal(-half_away(x))


@given(FLOATS)
def test_truncation_never_grows_and_loses_less_than_a_step(value: float) -> None:
    got = truncate_to_fp16(torch.tensor([value])).numpy()[0]
    assert abs(float(got)) <= abs(value)
    # The next float16 away from zero, by its bits; after 65504 that is Inf.
    above = (np.abs(got).view(np.uint16) + np.uint16(1)).view(np.float16) if np.isfinite(got) else np.float16(np.inf)
    assert float(above) > abs(value) or np.isinf(value)


def test_truncation_keeps_every_fp16() -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every[~torch.isnan(every)]
    assert truncate_to_fp16(every.float()).view(torch.int16).equal(every.view(torch.int16))


def test_fp16_overflow_is_a_switch() -> None:
    x = torch.tensor([65504.0, 65519.0, 65520.0, -1e30])  # 65520 is halfway to 65536: IEEE rounds it to Inf
    assert to_fp16(x).tolist() == [65504.0, 65504.0, torch.inf, -torch.inf]
    assert to_fp16(x, "saturate").tolist() == [65504.0, 65504.0, 65504.0, -65504.0]


def test_fp16_rounds_half_even() -> None:
    assert to_fp16(torch.tensor([2049.0, 2051.0])).tolist() == [2048.0, 2052.0]


def test_truncated_scales_keep_ten_bits_of_mantissa() -> None:
    scale = torch.tensor([1 + 2.0**-10, 1 + 2.0**-10 + 2.0**-11, 1 + 2.0**-11, 0.0123])
    want = np.array([0x3F802000, 0x3F802000, 0x3F800000, 0x3C498000], np.uint32)  # & 0xFFFFE000
    assert np.array_equal(truncate_scale(scale).numpy().view(np.uint32), want)
