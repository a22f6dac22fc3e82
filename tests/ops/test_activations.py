"""Four activations with their parameters in every use case; bits where fp32 knows sigmoid and tanh exactly."""

from dataclasses import replace

import pytest
from ops.compare import check, check_bits, run
from oracle.activations import Activation
from oracle.make import Shape, make_case

from vllm_megamoe.errors import OperatorError

USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]

# On grid data gates are 0, below -120 or at least 32: sigmoid(1.702 g), sigmoid(g) and tanh(g / 2) are saturated.
SATURATED = [
    Activation("swiglu", clamp=100.0),
    Activation("swiglustep"),
    Activation("swiglustep", clamp=100.0),
    Activation("swigluoai"),
    Activation("swigluoai", clamp=100.0, alpha=2.5, beta=-3.0),
    Activation("situglu"),
    Activation("situglu", beta=2.0),
]
SMOOTH = [
    Activation("swiglu", clamp=0.75),
    Activation("swiglustep"),
    Activation("swiglustep", clamp=0.75),
    Activation("swigluoai"),
    Activation("swigluoai", clamp=1.5, alpha=0.7, beta=0.25),
    Activation("situglu"),
    Activation("situglu", beta=4.0, linear_beta=25.0),
    Activation("situglu", beta=0.5, linear_beta=0.75),
]


def name(act: Activation) -> str:
    """Name and parameters."""
    return f"{act.name}-{act.clamp}-{act.alpha}-{act.beta}-{act.linear_beta}"


@pytest.mark.parametrize("act", SATURATED, ids=name)
@pytest.mark.parametrize("use_case", USE_CASES)
def test_bits_where_the_activation_is_exact(use_case: str, act: Activation) -> None:
    check_bits(replace(make_case(use_case, Shape(tokens=(4,), experts=3)), act=act))


@pytest.mark.parametrize("act", SMOOTH, ids=name)
@pytest.mark.parametrize("use_case", USE_CASES)
def test_bounds_elsewhere(use_case: str, act: Activation) -> None:
    check(replace(make_case(use_case, Shape(tokens=(4,), experts=3), grid=False), act=act))


@pytest.mark.parametrize("activation", ["swiglu", "swiglustep", "swigluoai"])
@pytest.mark.parametrize("use_case", ["a8w8-int", "a8w8-fp"])
def test_clamp_zero_is_no_clamp(use_case: str, activation: str) -> None:
    # operator_readme.txt: 未配置或配置为 0 means c = +inf
    case = make_case(use_case, Shape(tokens=(4,)), grid=False)
    got = check(replace(case, act=Activation(activation, clamp=0.0)))
    without = run(replace(case, act=Activation(activation)))
    assert got[0].y.tobytes() == without[0].y.tobytes()


def test_situglu_has_no_clamp() -> None:
    # operator_readme.txt, activation_params of situglu: [], [beta] or [beta, linear_beta]
    case = make_case("a16w16", Shape(tokens=(4,)), grid=False)
    with pytest.raises(OperatorError, match=r"activation_clamp=0\.01; expected None: situglu has no clamp"):
        run(replace(case, act=Activation("situglu", clamp=0.01)))


def test_clamp_bounds_gates_on_one_side_and_ups_on_both() -> None:
    # vllm-ascend #14363; a clamp of gates on both sides would move this case out of its bounds
    case = make_case("a16w16", Shape(tokens=(8,)), grid=False, seed=5)
    got = check(replace(case, act=Activation("swiglu", clamp=0.3)))
    assert not (got[0].y == run(case)[0].y).all()
