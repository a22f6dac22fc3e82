"""Zeros, infinities, NaN, saturation, and the named switches for what no source settles."""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check, check_bits, run
from oracle.activations import Activation
from oracle.case import Case, Dense, Integer, Mx
from oracle.make import Shape, make_case

USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]


def with_rows(case: Case, values: dict[int, np.ndarray | float]) -> Case:
    """Some tokens replaced."""
    x = case.ranks[0].x.copy()
    for token, row in values.items():
        x[token] = row
    return replace(case, ranks=(replace(case.ranks[0], x=x), *case.ranks[1:]))


@pytest.mark.parametrize("use_case", USE_CASES)
def test_a_token_of_zeros_gives_zeros(use_case: str) -> None:
    case = with_rows(make_case(use_case, Shape()), {2: 0.0})
    assert not check_bits(case)[0].y[2].any()


@pytest.mark.parametrize("use_case", USE_CASES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_token_spoils_no_other(use_case: str, bad: float) -> None:
    case = make_case(use_case, Shape())
    row = case.ranks[0].x[3].copy()
    row[5] = bad
    good = [0, 1, 2, 4]
    spoilt = run(with_rows(case, {3: row}))[0]
    assert spoilt.y[good].tobytes() == run(case)[0].y[good].tobytes()


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_nan_in_a_token_reaches_its_row(use_case: str) -> None:
    # MX: exponent 255 makes the block's scale 0xFF, which is NaN whatever the data bytes are (op kernel arch35)
    case = make_case(use_case, Shape())
    row = case.ranks[0].x[3].copy()
    row[5] = np.nan
    assert np.isnan(run(with_rows(case, {3: row}))[0].y[3]).any()


@pytest.mark.parametrize(("clamp", "finite"), [(None, True), (0.0, False)])
def test_the_default_clamp_bounds_infinities(clamp: float | None, finite: bool) -> None:
    # op kernel arch22: the default, the largest float32, is executed; 0 switches the clamp off, and Inf * 0 is NaN
    case = make_case("a16w16", Shape(tokens=(1,), experts=1, topk=1))
    assert isinstance(case.experts, Dense)
    w13 = np.zeros_like(case.experts.w13)
    w13[0, 0, 0] = 2.0**10
    x = np.zeros((1, 96), np.float32)
    x[0, 0] = 2.0**120
    case = replace(case, experts=replace(case.experts, w13=w13), act=Activation(clamp=clamp))
    assert np.isfinite(run(with_rows(case, {0: x[0]}))[0].y).all() == finite


@pytest.mark.parametrize("elem", ["e4m3", "e5m2"])
def test_mx_blocks_of_subnormals_flush_and_small_ones_do_not(elem: str) -> None:
    case = make_case("a8w8-fp", Shape(), act_elem=elem, grid=False)
    rows = {0: np.float32(2.0**-127), 1: np.float32(2.0**-118), 2: np.float32(1.5 * 2.0**-126)}
    got = check(with_rows(case, {t: np.full(96, v, np.float32) for t, v in rows.items()}))[0]
    assert not got.y[0].any()


@pytest.mark.parametrize(("use_case", "elem"), [("a8w8-fp", "e4m3"), ("a8w8-fp", "e5m2"), ("a4w4-fp", "e2m1")])
def test_mx_saturates_above_the_largest_number(use_case: str, elem: str) -> None:
    # 1.99 keeps the exponent of 1, so the scaled number is above 448/256, 57344/32768, 6/4
    case = make_case(use_case, Shape(), act_elem=elem)
    row = np.full(96, 1.9921875, np.float32)
    row[::3] *= -1
    row[-1] = 1.9921875
    check_bits(with_rows(case, {1: row}))


@pytest.mark.parametrize("byte", [0, 1, 200])
@pytest.mark.parametrize("use_case", ["a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_far_scale_bytes_are_their_powers_of_two(use_case: str, byte: int) -> None:
    case = make_case(use_case, Shape())
    assert isinstance(case.experts, Mx)
    scales = case.experts.s2.copy()
    scales[0, ::2] = byte
    check_bits(replace(case, experts=replace(case.experts, s2=scales)))


def _large(case: Case) -> Case:
    """Channel scales that carry the first product beyond 65504 in some channels."""
    assert isinstance(case.experts, Integer)
    s13 = case.experts.s13.copy()
    s13[:, ::7] *= np.float32(64)
    return replace(case, experts=replace(case.experts, s13=s13))


def test_fp16_overflow_saturates_when_told_so() -> None:
    check_bits(replace(_large(make_case("a8w8-int", Shape())), fp16_overflow="saturate"))


def test_fp16_overflow_is_infinite_by_default() -> None:
    case = _large(make_case("a8w8-int", Shape()))
    got = run(case)[0].y
    assert not np.isfinite(got).all(axis=1).any()


@pytest.mark.parametrize("use_case", ["a8w8-int", "a8w4-int"])
def test_scales_may_lose_their_low_bits(use_case: str) -> None:
    # the fixpipe may drop the low 13 bits of a scale (a sibling operator does); scales here have all 24
    case = make_case(use_case, Shape(), grid=False)
    assert isinstance(case.experts, Integer)
    rng = np.random.default_rng(4)
    full = {
        n: np.float32(getattr(case.experts, n) * rng.uniform(1, 1.01, getattr(case.experts, n).shape))
        for n in ("s13", "s2")
    }
    case = replace(case, experts=replace(case.experts, **full))
    truncated = check(replace(case, scale_bits="tf32"))[0].y
    assert (check(case)[0].y != truncated).any()
