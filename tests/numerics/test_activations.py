"""The four activations against operator_readme.txt's formulas in float64, and what their arguments may be."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.numerics.activations import Activation

F64 = NDArray[np.float64]
U = 2.0**-24  # half a unit in the last place of float32


def sigmoid(z: F64) -> F64:
    return np.asarray(1 / (1 + np.exp(-z)))


def formula(name: str, g: F64, u: F64, c: float, alpha: float, beta: float, linear: float | None) -> F64:
    gc, uc = np.minimum(g, c), np.clip(u, -c, c)
    if name == "swiglu":
        return np.asarray(gc * sigmoid(gc) * uc)
    if name == "swiglustep":
        return np.asarray(np.minimum(g * sigmoid(g), c) * uc)
    if name == "swigluoai":
        return np.asarray(gc * sigmoid(alpha * gc) * (uc + beta))
    branch = u if linear is None else linear * np.tanh(u / linear)
    return np.asarray(beta * np.tanh(g / beta) * sigmoid(g) * branch)


CALLS = [
    ("swiglu", None, None),
    ("swiglu", 0.0, None),
    ("swiglu", 10.0, None),
    ("swiglustep", None, {}),
    ("swiglustep", 7.0, None),
    ("swigluoai", 7.0, None),
    ("swigluoai", None, {"alpha": 1.0, "beta": 0.0}),
    ("swigluoai", 3.0, {"alpha": 1.5}),
    ("situglu", None, None),
    ("situglu", None, {"beta": 4.0, "linear_beta": 25.0}),
]


@pytest.mark.parametrize(("name", "clamp", "params"), CALLS)
def test_formula(name: str, clamp: float | None, params: dict[str, float] | None) -> None:
    rng = np.random.default_rng(11)
    g, u = (np.float32(rng.uniform(-20, 20, (37, 23))) for _ in range(2))
    given = params or {}
    alpha = float(np.float32(given.get("alpha", 1.702)))
    limit = clamp or math.inf
    want = formula(
        name, g.astype(np.float64), u.astype(np.float64), limit, alpha, given.get("beta", 1.0), given.get("linear_beta")
    )
    got = Activation.of(name, clamp, params).apply(torch.from_numpy(g), torch.from_numpy(u)).double().numpy()
    # Up to 10 float32 operations of at most 2 half-units each; an exponent alpha * g that is off by U * |alpha * g|
    # is a relative error of that size in exp.
    bound = (20 + 2 * abs(alpha) * np.abs(g)) * U * np.abs(want)
    assert (np.abs(got - want) <= bound).all(), float((np.abs(got - want) / np.abs(want)).max())


def test_the_gate_is_clamped_from_above_only() -> None:
    # Published figures: silu(-20) * 10 is 4.1e-7 in magnitude, a clamp on both sides would give 4.5e-3.
    got = Activation.of("swiglu", 10.0).apply(torch.tensor([-20.0]), torch.tensor([30.0]))
    assert abs(got.item()) == pytest.approx(4.1e-7, rel=0.01)


def test_the_up_branch_is_clamped_on_both_sides() -> None:
    got = Activation.of("swiglu", 2.0).apply(torch.tensor([1.0, 1.0]), torch.tensor([-50.0, 50.0]))
    assert got[0] == -got[1] == -2 * torch.tensor(1.0).sigmoid()


def test_clamps_differ_between_swiglu_and_swiglustep() -> None:
    g, u = torch.tensor([7.5]), torch.tensor([1.0])
    assert Activation.of("swiglustep", 7.0).apply(g, u).item() == 7.0  # silu(7.5) = 7.4959 is cut to 7
    assert Activation.of("swiglu", 7.0).apply(g, u).item() == pytest.approx(6.9936, abs=1e-4)  # silu(7)


@pytest.mark.parametrize("name", ["swiglu", "swiglustep", "swigluoai"])
def test_zero_clamp_is_none_and_no_clamp_bounds_infinities(name: str) -> None:
    g, u = torch.tensor([2.0]), torch.tensor([torch.inf])
    assert torch.isinf(Activation.of(name, 0.0).apply(g, u)).all()
    # The default FLT_MAX is executed (operator_readme.txt, activation_params): a finite number times silu(2) or more.
    bounded = Activation.of(name, None).apply(torch.tensor([-2.0]), u)
    assert torch.isfinite(bounded).all()
    assert Activation.of(name, math.inf).apply(g, u).isinf().all()


def test_linear_beta_changes_the_up_branch() -> None:
    g, u = torch.tensor([1.0]), torch.tensor([30.0])
    plain = Activation.of("situglu", None, {"beta": 4.0}).apply(g, u)
    bent = Activation.of("situglu", None, {"beta": 4.0, "linear_beta": 25.0}).apply(g, u)
    assert plain.item() / 30 == pytest.approx(bent.item() / (25 * math.tanh(30 / 25)), rel=1e-6)


@pytest.mark.parametrize("name", ["swiglu", "swiglustep", "swigluoai", "situglu"])
def test_a_zero_channel_stays_zero(name: str) -> None:
    # Padding of I relies on it.
    assert Activation.of(name).apply(torch.zeros(3), torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("gelu",), "activation='gelu'; expected one of swiglu, swiglustep, swigluoai, situglu"),
        ((7,), "activation=7"),
        (("swiglu", "7"), "activation_clamp='7'; expected a number"),
        (("swiglu", [7.0]), r"activation_clamp=\[7.0\]; expected a number"),
        (("swiglu", True), "activation_clamp=True; expected a number"),
        (("swiglu", None, "clamp"), "activation_params='clamp'; expected None, a mapping"),
        (("swiglu", None, 7.0), "activation_params=7.0; expected None, a mapping"),
        (("swigluoai", None, [7.0]), r"expected \[\] or \[clamp, alpha, beta\] for swigluoai"),
        (("swigluoai", None, [7.0, "1", 1.0]), r"activation_params\[1\]='1'; expected a number"),
        (("swigluoai", 5.0, [7.0, 1.702, 1.0]), "Give the clamp once"),
        (("situglu", None, [1.0, 2.0, 3.0]), r"\[\] or \[beta\] or \[beta, linear_beta\]"),
        (("situglu", 5.0), "situglu has no clamp"),
        (("situglu", 0.0), "situglu has no clamp"),
        (("swigluoai", None, {"alpha": 1e39}), "alpha.*1e.39; expected a finite float32"),
        (("situglu", None, {"beta": 1e-50}), "beta.*1e-50; expected a finite float32 above 0"),
        (("swigluoai", None, {"alpha": True}), "alpha.*True; expected a number"),
        (("swiglu", None, {"alpha": 1.0}), "alpha"),
        (("situglu", None, {"alpha": 1.0}), "linear_beta"),
        (("swiglu", -1.0), "activation_clamp"),
        (("swiglu", math.nan), "activation_clamp"),
        (("swigluoai", None, {"alpha": math.inf}), "alpha"),
        (("swigluoai", None, {"beta": None}), "beta"),
        (("situglu", None, {"beta": 0.0}), "above 0"),
        (("situglu", None, {"linear_beta": -2.0}), "linear_beta"),
    ],
)
def test_rejected(arguments: tuple[object, ...], word: str) -> None:
    with pytest.raises(OperatorError, match=word):
        Activation.of(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "listed", "clamp", "named"),
    [
        ("swiglu", [], None, {}),
        ("swiglustep", [7.0], 7.0, {}),
        ("swigluoai", [7.0, 1.702, 1.0], 7.0, {"alpha": 1.702, "beta": 1.0}),
        ("situglu", [2.0], None, {"beta": 2.0}),
        ("situglu", (2.0, 3), None, {"beta": 2.0, "linear_beta": 3.0}),
    ],
)
def test_the_documents_list_form(name: str, listed: list[float], clamp: float | None, named: dict[str, float]) -> None:
    # operator_readme.txt, activation_params: order and number of the list by activation
    assert Activation.of(name, None, listed) == Activation.of(name, clamp, named)
