"""The oracle's quantisers against named bytes, published rates and exhaustive identities."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from oracle import formats, quantisers
from oracle.interval import point


def test_msd_split_is_exact_for_every_int8() -> None:
    q = np.arange(-128, 128).astype(np.int8)
    high, low = quantisers.split_msd(q)
    assert high.min() == -8
    assert high.max() == 7
    assert low.min() == -8
    assert low.max() == 7
    assert np.array_equal(16 * high.astype(int) + low + 8, q.astype(int))


def test_dispatch_rounds_ties_away_from_zero() -> None:
    # amax 127 makes the scale 1, so halves are exact ties
    x = np.float32([[127, 0.5, 1.5, 2.5, -0.5, -2.5, -127, 126.5]])
    q, scale = quantisers.quantise_tokens(x, "kernel")
    assert q.exact
    assert q.lo.tolist() == [[127, 1, 2, 3, -1, -3, -127, 127]]
    assert scale.lo.item() == 1


def test_requantisation_rounds_ties_to_even() -> None:
    q, _ = quantisers.requantise(point([[127, 0.5, 1.5, 2.5, -0.5, -2.5]]), "kernel")
    assert q.lo.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_truncation_to_fp16_never_crosses_a_half() -> None:
    # every half below 1024 is an fp16 number, so it changes no integer
    halves = np.arange(0.5, 127, 1, dtype=np.float32)
    below = np.nextafter(halves, np.float32(0))
    for values in (halves, below):
        assert np.array_equal(formats.half_away(formats.truncate_to_fp16(values)), formats.half_away(values))


@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_a_row_of_zeros_gives_zeros_and_scale_zero(rule: str) -> None:
    zero = np.zeros((1, 40), np.float32)
    for q, scale in (quantisers.quantise_tokens(zero, rule), quantisers.requantise(point(zero), rule)):
        assert not q.lo.any()
        assert not q.hi.any()
        assert not scale.hi.any()


class Bytes(NamedTuple):
    name: str
    elem: str
    values: list[float]
    codes: list[int]
    scale: int


MX_CASES = [
    # floor(log2 amax) - emax + 127; E2M1 emax 2, E4M3 8, E5M2 15
    Bytes("e2m1_all_codes", "e2m1", [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6], [0, 1, 2, 3, 4, 5, 6, 7, 9, 15], 127),
    Bytes("e2m1_ties_to_even", "e2m1", [4, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -5], [6, 0, 2, 2, 4, 4, 6, 14], 127),
    Bytes("e2m1_saturates", "e2m1", [7.9375, 7], [7, 7], 127),
    Bytes("e4m3_saturates", "e4m3", [1.9375, 1, -1.875], [0x7E, 0x78, 0xFE], 119),
    Bytes("e4m3_power_of_two", "e4m3", [1, 0.5, -0.0], [0x78, 0x70, 0x80], 119),
    Bytes("e5m2_power_of_two", "e5m2", [1, -0.25], [0x78, 0xF0], 112),
    Bytes("e5m2_saturates", "e5m2", [1.9375], [0x7B], 112),
    Bytes("smallest_scale", "e4m3", [2.0**-119], [0x78], 0),
]


@pytest.mark.parametrize("case", MX_CASES, ids=lambda c: c.name)
def test_mx_bytes(case: Bytes) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, : len(case.values)] = case.values
    codes, scales = quantisers.mx_encode(x, case.elem)
    assert codes[0, : len(case.codes)].tolist() == case.codes
    assert scales.tolist() == [[case.scale]]


def test_mx_block_of_subnormals_flushes() -> None:
    x = np.full((1, 32), 2.0**-127, np.float32)
    assert not quantisers.mx_quantise(point(x), "e4m3").hi.any()


@pytest.mark.parametrize("elem", ["e4m3", "e5m2", "e2m1"])
def test_mx_bytes_mean_what_the_interval_says(elem: str) -> None:
    x = formats.to_bf16(np.float32(np.random.default_rng(2).standard_normal((7, 80))))
    codes, scales = quantisers.mx_encode(x, elem)
    known = quantisers.mx_quantise(point(x), elem)
    meant = formats.decode(codes, elem) * formats.e8m0(scales).repeat(32, axis=-1)[:, :80]
    assert known.exact
    assert np.array_equal(known.lo, meant)


def test_the_floor_rule_differs_from_the_ceil_rule_as_often_as_published() -> None:
    # 29.6 % of E2M1 blocks of 32 Gaussian numbers: floor(log2 amax) - 2 against ceil(log2(amax / 6))
    x = np.float32(np.random.default_rng(3).standard_normal((20000, 32)))
    _, floor = quantisers.mx_encode(formats.to_bf16(x), "e2m1")
    amax = np.abs(x).max(axis=1)
    other = np.ceil(np.log2(amax / 6)) + 127
    assert np.mean(floor[:, 0] != other) == pytest.approx(0.296, abs=0.015)  # 4 sigma of 20000 blocks, twice


def test_element_tables_are_those_of_ml_dtypes() -> None:
    every = np.arange(256, dtype=np.uint8)
    for elem, dtype in (("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)):
        values = formats.decode(every, elem)
        finite = np.isfinite(values)
        assert values[finite].max() == float(ml_dtypes.finfo(dtype).max)
        assert np.array_equal(formats.encode(values[finite], elem), every[finite])
