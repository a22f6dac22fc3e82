"""numerics="spec": the documents' formulas, with their quantisations and no other intermediate rounding."""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check, run
from oracle.activations import Activation
from oracle.case import Case, Dense, Integer
from oracle.make import Shape, make_case

USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]


@pytest.mark.parametrize("act", [Activation(), Activation("swigluoai", clamp=1.5)], ids=lambda a: a.name)
@pytest.mark.parametrize("use_case", USE_CASES)
def test_documents_formulas(use_case: str, act: Activation) -> None:
    check(replace(make_case(use_case, Shape(), grid=False, seed=3), rule="spec", act=act))


def test_the_kernel_rule_rounds_where_the_formula_does_not() -> None:
    case = make_case("a16w16", Shape(tokens=(16,)), grid=False)
    kernel, spec = run(case)[0].y, run(replace(case, rule="spec"))[0].y
    assert (kernel != spec).any()


def _tie_case(rule: str) -> Case:
    """x / s is exactly 1/2, 3/2, 5/2; identity-like weights show the integers that it became.

    With amax 127 the scale is 1. Gates are 128 times 127, so sigmoid is 1; ups are single columns of q.
    """
    x = np.zeros((1, 96), np.float32)
    x[0, :5] = [127, 0.5, 1.5, 2.5, -2.5]
    w13 = np.zeros((1, 128, 96), np.int8)
    w13[0, :64, 0] = 1
    for column in range(4):
        w13[0, 64 + column, 1 + column] = 1
    w13[0, 68:, 0] = 1
    w2 = np.zeros((1, 96, 64), np.int8)
    w2[0, np.arange(64), np.arange(64)] = 1
    experts = Integer(w13, np.ones((1, 128), np.float32), w2, np.ones((1, 96), np.float32), 8)
    base = make_case("a8w8-int", Shape(tokens=(1,), experts=1, topk=1))
    rank = replace(base.ranks[0], x=x, topk_weights=np.ones((1, 1), np.float32))
    return replace(base, experts=experts, ranks=(rank,), rule=rule)


@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_dispatch_rounds_ties_away_from_zero(rule: str) -> None:
    # both rules: operator facts 6.1 CAST_ROUND; operator_readme.txt 四舍五入
    y = run(_tie_case(rule))[0].y
    # A = 127 q, its amax 127^2, its scale 127; q is recovered as 127 round(q): 1, 2, 3, -3 times 127
    assert y[0, :4].tolist() == [127, 254, 380, -380]  # 381 is no bf16 number: a tie, to the even 380


def test_float32_tokens_and_weights_are_computed_without_any_rounding_to_bf16() -> None:
    case = make_case("a16w16", Shape(tokens=(6,)), grid=False)
    rng = np.random.default_rng(8)
    assert isinstance(case.experts, Dense)
    wide = [np.float32(w * (1 + rng.uniform(0, 2**-9, w.shape))) for w in (case.experts.w13, case.experts.w2)]
    x = np.float32(case.ranks[0].x * (1 + rng.uniform(0, 2**-9, case.ranks[0].x.shape)))
    case = replace(case, experts=Dense(*wide), ranks=(replace(case.ranks[0], x=x),), full_float32=True)
    got = check(case)[0]
    low_bits = got.y.view(np.uint32) & 0xFFFF
    assert (low_bits != 0).any(axis=1).all()  # bf16 numbers have none
