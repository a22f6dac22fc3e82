"""The oracle's intervals hold what fp32 code computes, and collapse where fp32 is exact."""

import numpy as np
import pytest
import torch
from oracle import activations, routing
from oracle.activations import Activation
from oracle.case import Case, Dense, Rank
from oracle.gemm import gemm
from oracle.interval import point
from oracle.make import Shape, make_case
from oracle.operator import expected


def test_any_summation_order_stays_inside_the_product_bounds() -> None:
    rng = np.random.default_rng(0)
    x, w = (np.float32(rng.standard_normal(s)) for s in ((5, 300), (7, 300)))
    bounds = gemm(point(x), w.astype(np.float64), exact_products=False)
    for order in (np.arange(300), rng.permutation(300), np.argsort(-np.abs(x[0]))):
        total = np.zeros((5, 7), np.float32)
        for k in order:
            total = total + x[:, k, None] * w[None, :, k]
        assert (bounds.lo <= total).all()
        assert (total <= bounds.hi).all()
    assert not bounds.exact


def test_sums_on_a_grid_are_one_number() -> None:
    rng = np.random.default_rng(1)
    x, w = np.float32(rng.integers(-9, 10, (5, 300)) / 8), rng.integers(-9, 10, (7, 300)) / 4.0
    bounds = gemm(point(x), w)
    assert bounds.exact
    assert np.array_equal(bounds.lo, x.astype(np.float64) @ w.T)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_grid_cases_leave_nothing_open(use_case: str) -> None:
    for result in expected(make_case(use_case, Shape(tokens=(5, 3)), shared=0)):
        assert result.y.exact
        assert np.isfinite(result.y.lo).all()
        assert len(np.unique(result.y.lo)) > result.y.lo.size // 4


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_random_cases_are_bounded_closely(use_case: str) -> None:
    (result,) = expected(make_case(use_case, Shape(), grid=False))
    width = np.linalg.norm(result.y.hi - result.y.lo, axis=1) / np.linalg.norm(result.y.lo, axis=1)
    assert width.max() < 2.0**-7  # less than a change of every element by a step of bf16


def test_one_dense_case_against_the_plain_formula() -> None:
    case = make_case("a16w16", Shape(tokens=(6,)), grid=False)
    (result,) = expected(case)
    rank, w = case.ranks[0], case.experts
    assert isinstance(w, Dense)
    y = np.zeros((6, 96))
    for t, k in np.ndindex(6, 3):
        e = rank.topk_ids[t, k]
        gate, up = np.split(w.w13[e].astype(np.float64) @ rank.x[t], 2)
        y[t] += rank.topk_weights[t, k] * (w.w2[e].astype(np.float64) @ (gate / (1 + np.exp(-gate)) * up))
    middle = (result.y.lo + result.y.hi) / 2
    error = np.linalg.norm(middle - y, axis=1) / np.linalg.norm(y, axis=1)
    assert error.max() < 2.0**-7  # bf16 steps at four places, each 2^-9 at most, add as their squares


@pytest.mark.parametrize(
    "act",
    [
        Activation("swiglu"),
        Activation("swiglu", clamp=1.5),
        Activation("swiglustep", clamp=1.5),
        Activation("swigluoai", clamp=7.0),
        Activation("situglu", beta=4.0, linear_beta=25.0),
    ],
    ids=lambda a: f"{a.name}-{a.clamp}",
)
def test_activations_hold_fp32_code(act: Activation) -> None:
    rng = np.random.default_rng(4)
    gate, up = (np.float32(rng.standard_normal((9, 40)) * 4) for _ in range(2))
    bounds = activations.apply(act, point(gate), point(up))
    g, u = torch.from_numpy(gate), torch.from_numpy(up)
    limit = act.clamp or float("inf")
    capped, clipped = g.clamp(max=limit), u.clamp(-limit, limit)
    if act.name == "swiglu":
        value = capped / (1 + torch.exp(-capped)) * clipped
    elif act.name == "swiglustep":
        value = (g * torch.sigmoid(g)).clamp(max=limit) * clipped
    elif act.name == "swigluoai":
        value = capped * torch.sigmoid(1.702 * capped) * (clipped + 1)
    else:
        value = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * (25 * torch.tanh(u / 25))
    assert (bounds.lo <= value.numpy()).all()
    assert (value.numpy() <= bounds.hi).all()


def test_clamp_bounds_the_gate_on_one_side_only() -> None:
    # vllm-ascend #14363: g = -20, u = 10, c = 10 give 4.1e-7; a clamp on both sides would give 4.5e-3
    value = activations.apply(Activation("swiglu", clamp=10.0), point([[-20.0]]), point([[10.0]]))
    assert abs(value.lo.item()) == pytest.approx(4.1e-7, rel=0.02)


def test_a_full_receive_buffer_loses_the_last_rows_but_counts_them() -> None:
    # vllm-ascend #11258: 4 experts on 2 ranks, 6 tokens with ids [0, 1], room for 8 rows
    ids = np.tile(np.int32([0, 1]), (3, 1))
    rank = Rank(np.ones((3, 32), np.float32), ids, np.ones((3, 2), np.float32))
    experts = Dense(np.ones((4, 32, 32), np.float32), np.ones((4, 32, 16), np.float32))
    case = Case("a16w16", experts, (rank, rank), max_recv_token_num=8)
    slots = routing.slots_by_expert(case)
    assert [len(rows) for rows in slots] == [6, 6, 0, 0]
    assert [len(rows) for rows in routing.kept(case, slots)] == [6, 2, 0, 0]
    assert [result.expert_token_nums.tolist() for result in expected(case)] == [[6, 6], [0, 0]]
