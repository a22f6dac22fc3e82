"""MX quantisation: a named table of groups and bytes, and a formula with ml_dtypes; both judge, neither imports us."""

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vllm_megamoe.numerics.mx import Elem, e8m0_value, mx_dequantise, mx_dequantise_bytes, mx_quantise
from vllm_megamoe.numerics.switches import Rule

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
EMAX = {"e4m3": 8, "e5m2": 15, "e2m1": 2}
BOTH: tuple[Rule, ...] = ("kernel", "spec")


class Case(NamedTuple):
    """The first values of a group, zeros after them; the bytes that come out."""

    name: str
    elem: Elem
    values: list[float]
    codes: list[int]
    scale: int
    rules: tuple[Rule, ...] = BOTH


CASES = [
    # scale = biased exponent of amax - emax; 1.0 has 127
    Case("e4m3_one", "e4m3", [1.0, 0.5, -1.0], [0x78, 0x70, 0xF8], 119),
    Case("e5m2_one", "e5m2", [1.0, 0.5, -1.0], [0x78, 0x74, 0xF8], 112),
    Case("e2m1_one", "e2m1", [1.0, 0.5, -1.0], [6, 4, 14], 125),
    Case("e4m3_tie_17_to_16_and_19_to_20", "e4m3", [1.0, 17 / 256, 19 / 256], [0x78, 0x58, 0x5A], 119),
    Case("e5m2_tie_9_to_8_and_11_to_12", "e5m2", [1.0, 9 / 2**15, 11 / 2**15], [0x78, 0x48, 0x4A], 112),
    Case("e2m1_ties_5_2.5_3.5", "e2m1", [1.0, 1.25, 0.625, 0.875], [6, 6, 4, 6], 125),
    Case("e2m1_ties_0.25_0.75_1.25_1.75", "e2m1", [1.0, 1 / 16, 3 / 16, 5 / 16, 7 / 16], [6, 0, 2, 2, 4], 125),
    Case("e4m3_above_448_saturates", "e4m3", [1.9375, -1.9375, 1.75], [0x7E, 0xFE, 0x7E], 119),
    Case("e5m2_above_57344_saturates", "e5m2", [1.9375, -1.9375], [0x7B, 0xFB], 112),
    Case("e2m1_7_saturates", "e2m1", [1.75, -1.75, 1.5], [7, 15, 7], 125),
    Case("e4m3_zero_group", "e4m3", [0.0, -0.0], [0x00, 0x80], 0),
    Case("e2m1_zero_group", "e2m1", [0.0, -0.0], [0, 8], 0),
    Case("e4m3_exponent_is_emax", "e4m3", [2.0**-119, -(2.0**-120)], [0x78, 0xF0], 0),
    Case("e4m3_exponent_below_emax", "e4m3", [2.0**-120, 2.0**-126], [0x70, 0x40], 0),
    Case("e5m2_exponent_above_emax", "e5m2", [2.0**-111], [0x78], 1),
    Case("e2m1_exponent_is_one", "e2m1", [2.0**-126, 2.0**-127], [4, 2], 0),
    Case("e4m3_subnormal_element", "e4m3", [2.0**-126, 2.0**-127], [0x40, 0x38], 0),
    Case("e4m3_subnormal_group_flushes", "e4m3", [2.0**-127, -(2.0**-127)], [0x00, 0x80], 0, ("kernel",)),
    Case("e4m3_subnormal_group_stays", "e4m3", [2.0**-127, -(2.0**-127)], [0x38, 0xB8], 0, ("spec",)),
    Case("e2m1_subnormal_group_flushes", "e2m1", [2.0**-127, -(2.0**-128)], [0, 8], 0, ("kernel",)),
    Case("e4m3_largest_bfloat16", "e4m3", [3.3895313892515355e38, 2.0**127], [0x7E, 0x78], 246),
    Case("e2m1_largest_bfloat16", "e2m1", [3.3895313892515355e38, 2.0**127], [7, 6], 252),
    # 257/256 rounds to 1 in bfloat16; OCP's formula sees 257/256 * 256 = 257, which is 256 in E4M3 as well.
    Case("e4m3_amax_rounds_up_to_two", "e4m3", [1.9990234375], [0x78], 120, ("kernel",)),
    Case("e4m3_amax_stays_below_two", "e4m3", [1.9990234375], [0x7E], 119, ("spec",)),
]


def formula(x: NDArray[np.float32], elem: Elem, rule: Rule) -> tuple[NDArray[np.uint8], list[int]]:
    """One group, from the OCP formula: shared exponent floor(log2 amax) - emax, round half even, clip."""
    if rule == "kernel":
        x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    amax = float(np.abs(x).max())
    if not math.isfinite(amax):
        return np.full(x.shape, np.nan, np.float32).astype(TYPES[elem]).view(np.uint8), [255]
    floor_log2 = math.frexp(amax)[1] - 1 if amax else -999
    if rule == "kernel" and floor_log2 < -126:  # bfloat16 subnormals and zeros
        return np.copysign(np.zeros_like(x), x).astype(TYPES[elem]).view(np.uint8), [0]
    exponent = max(floor_log2 - EMAX[elem], -127)
    exact = np.clip(x.astype(np.float64) * 2.0**-exponent, -LARGEST[elem], LARGEST[elem])
    return exact.astype(np.float32).astype(TYPES[elem]).view(np.uint8), [exponent + 127]


def group_of(values: list[float]) -> NDArray[np.float32]:
    group = np.zeros(32, np.float32)
    group[: len(values)] = values
    return group


@pytest.mark.parametrize(
    ("case", "rule"), [(c, r) for c in CASES for r in c.rules], ids=lambda v: getattr(v, "name", v)
)
def test_named_case(case: Case, rule: Rule) -> None:
    group = group_of(case.values)
    codes, scales = mx_quantise(torch.from_numpy(group)[None], case.elem, rule)
    assert codes[0, : len(case.values)].tolist() == case.codes
    assert scales.tolist() == [[case.scale]]


@pytest.mark.parametrize(
    ("case", "rule"), [(c, r) for c in CASES for r in c.rules], ids=lambda v: getattr(v, "name", v)
)
def test_the_table_agrees_with_the_formula(case: Case, rule: Rule) -> None:
    codes, scale = formula(group_of(case.values), case.elem, rule)
    assert codes[: len(case.values)].tolist() == case.codes
    assert scale == [case.scale]


@pytest.mark.parametrize("elem", ["e4m3", "e5m2", "e2m1"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rule", BOTH)
def test_infinity_or_nan_makes_its_group_nan_and_no_other(elem: Elem, bad: float, rule: Rule) -> None:
    x = torch.ones(2, 96)
    x[1, 40] = bad
    codes, scales = mx_quantise(x, elem, rule)
    assert (scales == 255).tolist() == [[False, False, False], [False, True, False]]
    values = mx_dequantise(codes, scales, elem)
    assert torch.isnan(values[1, 32:64]).all()
    values[1, 32:64] = 1
    assert values.equal(torch.ones(2, 96))


@pytest.mark.parametrize("elem", ["e4m3", "e5m2", "e2m1"])
@pytest.mark.parametrize("rule", BOTH)
@pytest.mark.parametrize("k", [96, 80, 33, 64])  # an odd number of groups, a part of a group, one element, even
def test_rows_follow_the_formula(elem: Elem, rule: Rule, k: int) -> None:
    rng = np.random.default_rng(k)
    spread = 2.0 ** rng.integers(-130, 120, (5, k)).astype(np.float64)
    x = np.float32(rng.standard_normal((5, k)) * spread)
    codes, scales = mx_quantise(torch.from_numpy(x), elem, rule)
    assert scales.shape == (5, -(-k // 32))
    for row in range(5):
        for g in range(-(-k // 32)):
            want, scale = formula(x[row, 32 * g : 32 * g + 32], elem, rule)
            assert codes[row, 32 * g : 32 * g + 32].tolist() == want.tolist()
            assert [int(scales[row, g])] == scale


def test_bfloat16_rows_give_the_bytes_of_their_float32_values() -> None:
    x = torch.randn(3, 160, generator=torch.Generator().manual_seed(1)).bfloat16()
    for a, b in zip(mx_quantise(x, "e4m3"), mx_quantise(x.float(), "e4m3"), strict=True):
        assert a.equal(b)


def test_every_scale_byte_has_the_value_that_ml_dtypes_gives_it() -> None:
    every = np.arange(256, dtype=np.uint8)
    want = every.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(e8m0_value(torch.from_numpy(every)).numpy(), want)


@pytest.mark.parametrize("k", [96, 80])
def test_dequantise_multiplies_each_group_by_its_own_scale(k: int) -> None:
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 0x7E, (3, 5, k)).astype(np.uint8)
    scales = rng.integers(100, 140, (3, 5, -(-k // 32))).astype(np.uint8)
    got = mx_dequantise(torch.from_numpy(codes), torch.from_numpy(scales), "e4m3").numpy()
    for i in np.ndindex(codes.shape):
        value = float(codes[i].view(ml_dtypes.float8_e4m3fn)) * 2.0 ** (int(scales[(*i[:2], i[2] // 32)]) - 127)
        assert got[i] == value


def test_packed_bytes_dequantise_as_their_codes() -> None:
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 16, (5, 96)).astype(np.uint8)
    scales = torch.from_numpy(rng.integers(100, 140, (5, 3)).astype(np.uint8))
    stored = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)
    assert mx_dequantise_bytes(stored, scales, "e2m1").equal(mx_dequantise(torch.from_numpy(codes), scales, "e2m1"))


@pytest.mark.parametrize("elem", ["e4m3", "e5m2", "e2m1"])
def test_ceil_takes_the_least_scale_that_saturates_nothing(elem: Elem) -> None:
    random = np.random.default_rng(3)
    x = (random.standard_normal((200, 32)) * np.exp(random.normal(0, 3, (200, 1)))).astype(ml_dtypes.bfloat16)
    values = x.astype(np.float64)
    exponent = np.ceil(np.log2(np.abs(values).max(axis=1) / LARGEST[elem]))
    codes, scales = mx_quantise(torch.from_numpy(values).bfloat16(), elem, scale="ceil")
    np.testing.assert_array_equal(scales.numpy()[:, 0], exponent + 127)
    expected = (values / 2.0 ** exponent[:, None]).astype(np.float32).astype(TYPES[elem])
    np.testing.assert_array_equal(codes.numpy(), expected.view(np.uint8))
    floor = mx_quantise(torch.from_numpy(values).bfloat16(), elem)[1].numpy()[:, 0]
    assert set((scales.numpy()[:, 0] - floor).tolist()) == {0, 1}
