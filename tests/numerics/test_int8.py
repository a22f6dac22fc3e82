"""INT8 roundings: named rows, and the documents' formulas in numpy."""

from typing import Literal, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vllm_megamoe.numerics.int8 import quantise_tokens, quantise_weight, requantise, split_msd
from vllm_megamoe.numerics.switches import Rule

F32 = NDArray[np.float32]


class Case(NamedTuple):
    """A row whose largest magnitude is 127, so that the scale is 1 and halves are exact ties."""

    name: str
    row: list[float]
    dispatch: list[int]
    second: list[int]


CASES = [
    Case("ties", [127, 0.5, 1.5, 2.5, -0.5, -2.5], [127, 1, 2, 3, -1, -3], [127, 0, 2, 2, 0, -2]),
    Case("below_a_tie", [-127, 0.49999997, 2.4999998, -1.4999999], [-127, 0, 2, -1], [-127, 0, 2, -1]),
    Case("above_a_tie", [127, 0.50000006, 2.5000002], [127, 1, 3], [127, 1, 3]),
    Case("near_the_end", [127, 126.5, -126.5, 125.5], [127, 127, -127, 126], [127, 126, -126, 126]),
]


def truncated_fp16(x: F32) -> F32:
    half = x.astype(np.float16)
    return np.where(np.abs(half) > np.abs(x), np.nextafter(half, np.float16(0)), half).astype(np.float32)


def half_away(x: F32) -> F32:
    exact = x.astype(np.float64)
    return np.float32(np.copysign(np.floor(np.abs(exact) + 0.5), exact))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_dispatch_rounds_half_away(case: Case, rule: Rule) -> None:
    q, scale = quantise_tokens(torch.tensor([case.row]), rule)
    assert q.tolist() == [case.dispatch]
    assert scale.tolist() == [1.0]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_second_quantisation_rounds_half_even(case: Case) -> None:
    q, scale = requantise(torch.tensor([case.row]))
    assert q.tolist() == [case.second]
    assert scale.tolist() == [1.0]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_second_quantisation_of_the_documents_rounds_half_away(case: Case) -> None:
    assert requantise(torch.tensor([case.row]), "spec")[0].tolist() == [case.dispatch]


def rows() -> F32:
    """Random rows, half of their values within a few units of a tie, where the order of operations shows."""
    rng = np.random.default_rng(5)
    amax = np.float32(rng.uniform(1, 2, (40, 1)) * 2.0 ** rng.integers(-30, 30, (40, 1)))
    ties = amax * ((rng.integers(-127, 127, (40, 256)) + 0.5) / 127)
    return np.concatenate([amax, np.float32(ties), np.float32(amax * rng.uniform(-1, 1, (40, 260)))], axis=1)


def test_dispatch_divides_truncates_and_rounds_in_float32() -> None:
    x = rows()
    scale = np.abs(x).max(1) / np.float32(127)
    want = half_away(truncated_fp16(x / scale[:, None]))
    q, got_scale = quantise_tokens(torch.from_numpy(x))
    assert np.array_equal(q.numpy(), want)
    assert np.array_equal(got_scale.numpy(), scale)


def test_second_quantisation_multiplies_by_the_reciprocal() -> None:
    a = rows()
    amax = np.abs(a).max(1)
    want = np.rint(a * (np.float32(127) / amax)[:, None])
    q, scale = requantise(torch.from_numpy(a))
    assert np.array_equal(q.numpy(), want)
    assert np.array_equal(scale.numpy(), amax / np.float32(127))


def test_multiplying_and_dividing_are_told_apart() -> None:
    # So the two tests above can fail.
    a = rows()
    amax = np.abs(a).max(1, keepdims=True)
    by_factor, by_scale = a * (np.float32(127) / amax), a / (amax / np.float32(127))
    assert not np.array_equal(np.rint(by_factor), np.rint(by_scale))
    assert not np.array_equal(half_away(truncated_fp16(by_factor)), half_away(truncated_fp16(by_scale)))


@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_a_row_of_zeros_gives_zeros_and_scale_zero(rule: Rule) -> None:
    x = torch.tensor([[0.0, -0.0, 0.0], [1.0, 0.0, -2.0]])
    for quantise in (quantise_tokens, requantise):
        q, scale = quantise(x, rule)
        assert q[0].tolist() == [0, 0, 0]
        assert scale[0] == 0
        assert q[1, 2] == -127


@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_infinity_and_nan_stay_in_their_row(rule: Rule) -> None:
    x = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0], [2.0, 1.0]])
    for quantise in (quantise_tokens, requantise):
        q, scale = quantise(x, rule)
        product = q.float() * scale[:, None]
        assert torch.isnan(product[0]).any()  # 0 * inf
        assert torch.isnan(product[1]).all()
        assert product[2, 0] == pytest.approx(2.0, rel=2**-22)  # 127 * (2 / 127): two roundings


@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_rows_of_float32_subnormals_stay_in_range(rule: Rule) -> None:
    x = torch.tensor([[190 * 2.0**-149, -(2.0**-149)], [3 * 2.0**-149, 0.0]])
    for quantise in (quantise_tokens, requantise):
        q, _ = quantise(x, rule)
        assert q.min() >= -127
        assert q.max() <= 127


@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
def test_weights_scale_per_output_channel(bits: Literal[4, 8], largest: int) -> None:
    """INT4 too: amax / 7 leaves the code -8 unused."""
    w = rows()[:, :33] * np.float32(2.0) ** np.arange(-20, 20, dtype=np.float32)[:, None]
    q, scale = quantise_weight(torch.from_numpy(w), bits)
    want = np.abs(w).max(1) / np.float32(largest)
    assert np.array_equal(scale.numpy(), want)
    assert np.array_equal(q.numpy(), np.rint(w / want[:, None]))
    assert q.abs().amax(1).eq(largest).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_odd_channels(dtype: torch.dtype) -> None:
    """Infinite, NaN, subnormal, tiny and negative ones beside a usual one, in the block that they share with it."""
    usual, small = [3.0, -0.5, 1.0], 2.0**-133  # a subnormal of bfloat16 too
    w = torch.tensor([usual, [torch.inf, 1.0, -1.0], [1.0, torch.nan, 2.0], [small, -3 * small, 0.0], [-4.0, 0.0, 2.0]])
    q, scale = quantise_weight(w.to(dtype))
    assert q[0].tolist() == [127, -21, 42]
    assert q[1].tolist() == q[2].tolist() == [0, 0, 0]
    assert torch.isinf(scale[1])
    assert torch.isnan(scale[2])
    assert q[3].abs().max() == 127
    assert q[4].tolist() == [-127, 0, 64]  # 63.5, half even
    assert w[4, 0] == -4.0  # the weights stay


def test_a_zero_channel_has_scale_one() -> None:
    q, scale = quantise_weight(torch.zeros(2, 5))
    assert not q.any()
    assert scale.tolist() == [1.0, 1.0]


def test_the_split_is_exact_for_every_int8() -> None:
    q = torch.arange(-128, 128).to(torch.int8)
    high, low = split_msd(q)
    assert high.dtype == low.dtype == torch.int8
    assert (int(high.min()), int(high.max()), int(low.min()), int(low.max())) == (-8, 7, -8, 7)
    assert (16 * high.int() + low.int() + 8).equal(q.int())
    assert high.int().equal(torch.floor_divide(q.int(), 16))
