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


def _one_token(values: list[float], gate: list[int], factor: int, peak: int, rule: str) -> Case:
    """One token and one expert with all scales 1, so that single integers can be followed.

    Up channel i is `factor` times the token's integer i + 1, the last channels are `peak` times its first, which is 127
    and makes the token's scale 1. `gate` weighs its first integers into every gate channel; they are above 32, where
    sigmoid is 1. The second weight hands each activation to the output channel of its number.
    """
    x = np.zeros((1, 96), np.float32)
    x[0, : len(values)] = values
    w13 = np.zeros((1, 128, 96), np.int8)
    w13[0, :64, : len(gate)] = gate
    for channel in range(len(values) - 1):
        w13[0, 64 + channel, 1 + channel] = factor
    w13[0, 63 + len(values) :, 0] = peak
    w2 = np.zeros((1, 96, 64), np.int8)
    w2[0, np.arange(64), np.arange(64)] = 1
    experts = Integer(w13, np.ones((1, 128), np.float32), w2, np.ones((1, 96), np.float32), 8)
    base = make_case("a8w8-int", Shape(tokens=(1,), experts=1, topk=1))
    rank = replace(base.ranks[0], x=x, topk_weights=np.ones((1, 1), np.float32))
    return replace(base, experts=experts, ranks=(rank,), rule=rule)


@pytest.mark.parametrize("rule", ["kernel", "spec"])
def test_dispatch_rounds_ties_away_from_zero(rule: str) -> None:
    # both rules: op kernel arch22, CAST_ROUND; operator_readme.txt 四舍五入
    y = run(_one_token([127, 0.5, 1.5, 2.5, -2.5], [1], 1, 1, rule))[0].y
    # A = 127 q, its amax 127^2, its scale 127; q is recovered as 127 round(q): 1, 2, 3, -3 times 127
    assert y[0, :4].tolist() == [127, 254, 380, -380]  # 381 is no bf16 number: a tie, to the even 380


@pytest.mark.parametrize(
    ("rule", "integers"),
    [("kernel", [0, 2, 2, -2]), ("spec", [1, 2, 3, -2])],  # half even (op kernel arch22, RINT); 四舍五入
)
def test_the_second_quantisation_rounds_its_ties(rule: str, integers: list[int]) -> None:
    # gates are 127 + 1; A = 128 u, its amax 128 * 254 = 127 * 256, so A 127 / amax = u / 2 exactly, the scale is 256
    y = run(_one_token([127, 1, 3, 5, -3], [1, 1], 1, 2, rule))[0].y
    assert y[0, :4].tolist() == [256.0 * q for q in integers]


def test_the_second_quantisation_multiplies_by_a_rounded_reciprocal() -> None:
    # op kernel arch22: a (127 / amax), not a / (amax / 127). A = 128 * 15 u, amax = 128 * 30 * 127, the scale 3840;
    # u / 2 is a tie for odd u, and fl(127 / amax), which is above 1 / 3840, carries 5/2, 13/2 and 21/2 over it
    factor = np.float32(127) / np.float32(128 * 30 * 127)
    assert float(factor) > 1 / 3840
    y = run(_one_token([127, 1, 5, 13, 21], [1, 1], 15, 30, "kernel"))[0].y
    assert y[0, :4].tolist() == [3840.0 * q for q in (0, 3, 7, 11)]


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
