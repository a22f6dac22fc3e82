"""One layer through the method's own parts, weights as vLLM loads them, against float64 written out here.

The expected rows come from the formula of a gated expert layer on the original weights; nothing of the package takes
part in them.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from layer.layers import convert_routed
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layer import state
from vllm_megamoe.layer.buffers import close_buffers, open_handle
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer

EXPERTS, TOPK, HIDDEN, WIDTH, ROWS = 5, 3, 160, 96, 37
ALONE = Seat(group=None, rank=0, size=1, all_gather=lambda rows: rows)


@dataclass
class Problem:
    x: Tensor
    ids: Tensor
    weights: Tensor
    w13: Tensor
    w2: Tensor


@pytest.fixture
def problem() -> Problem:
    """Random rows; every expert, output row and input column has a scale of its own."""
    g = torch.Generator().manual_seed(11)

    def uneven(*shape: int) -> Tensor:
        rows = torch.rand(shape[0], shape[1], 1, generator=g) + 0.5
        return torch.randn(shape, generator=g) * rows * (torch.rand(shape[0], 1, 1, generator=g) + 0.5)

    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOPK] for _ in range(ROWS)]).to(torch.int32)
    return Problem(
        x=torch.randn(ROWS, HIDDEN, generator=g).to(torch.bfloat16),
        ids=ids,
        weights=torch.rand(ROWS, TOPK, generator=g) + 0.1,
        w13=(uneven(EXPERTS, 2 * WIDTH, HIDDEN) / math.sqrt(HIDDEN)).to(torch.bfloat16),
        w2=(uneven(EXPERTS, HIDDEN, WIDTH) / math.sqrt(WIDTH)).to(torch.bfloat16),
    )


def run(problem: Problem, **options: str) -> tuple[Tensor, LayerState]:
    facts = MoeFacts("layer", EXPERTS, TOPK, HIDDEN, WIDTH)
    engine = EngineFacts(dtype="bfloat16", max_num_batched_tokens=64)
    plan = plan_layer(engine, facts, Options.model_validate(options))
    operands = convert_routed(problem.w13, problem.w2, plan)
    state = LayerState("layer", plan, ALONE, operands, open_handle("layer", plan, ALONE))
    return state.run(problem.x, problem.ids, problem.weights), state


@dataclass
class Expected:
    """Rows in float64, and the variance that the formats' roundings give each of their elements."""

    rows: Tensor
    variance: Tensor


def expected(problem: Problem, int8: bool) -> Expected:
    """The layer's formula, and beside it the variance of every rounding, carried along to first order.

    A rounding to a grid of step d has variance d^2 / 12. INT8 steps: amax/127 of the row for activations, of the
    channel for weights. BF16 has 8 significant bits: a value v is rounded with a step of at most 2^-7 |v|.
    """
    rows = torch.zeros(ROWS, HIDDEN, dtype=torch.float64)
    variance = torch.zeros_like(rows)
    for t in range(ROWS):
        x = problem.x[t].double()
        for k in range(TOPK):
            w13, w2 = (w[int(problem.ids[t, k])].double() for w in (problem.w13, problem.w2))
            h = w13 @ x
            var_h = _product_variance(w13, x, int8) + _bf16(h)
            (g, u), (var_g, var_u) = h.chunk(2), var_h.chunk(2)
            sigmoid = 1 / (1 + torch.exp(-g))
            a = g * sigmoid * u
            slope = sigmoid * (1 + g * (1 - sigmoid))
            var_a = (slope * u) ** 2 * var_g + (g * sigmoid) ** 2 * var_u + _bf16(a)
            y = w2 @ a
            var_y = (w2**2) @ var_a + _product_variance(w2, a, int8) + _bf16(y)
            p = float(problem.weights[t, k])
            rows[t] += p * y
            variance[t] += p**2 * var_y
    return Expected(rows, variance + _bf16(rows))


def _product_variance(w: Tensor, v: Tensor, int8: bool) -> Tensor:
    """Variance of w @ v when both are rounded to INT8, per output channel and per row; none without INT8."""
    if not int8:
        return torch.zeros(len(w), dtype=torch.float64)
    step_w, step_v = w.abs().amax(dim=1) / 127, v.abs().max() / 127
    return step_w**2 / 12 * (v**2).sum() + step_v**2 / 12 * (w**2).sum(dim=1)


def _bf16(v: Tensor) -> Tensor:
    return (2.0**-7 * v) ** 2 / 12


def worst_row(y: Tensor, want: Expected) -> tuple[float, int]:
    """Largest ratio, over the rows, of the error's length to the length that the variances predict."""
    length = (y.double() - want.rows).square().sum(dim=1).sqrt()
    ratios = length / want.variance.sum(dim=1).sqrt()
    return float(ratios.max()), int(ratios.argmax())


# A row has 160 elements, whose errors share the roundings of the row's activations; its length is then within a factor
# of two of the prediction, which is an upper estimate (steps of BF16 are taken at their widest).
LIMIT = 2.0


@pytest.mark.parametrize(
    "options", [{"use_case": "a16w16"}, {"use_case": "a8w8-int", "requant": "allow"}], ids=lambda o: o["use_case"]
)
def test_rows_lie_within_the_formats_roundings(problem: Problem, options: dict[str, str]) -> None:
    y, _ = run(problem, **options)
    ratio, row = worst_row(y, expected(problem, int8=options["use_case"] == "a8w8-int"))
    assert ratio < LIMIT, f"row {row}: {ratio:.2f} times the predicted error"


@pytest.mark.parametrize("damage", ["scaled", "swapped experts", "swapped halves", "no router weight"])
def test_the_comparison_sees_damage(problem: Problem, damage: str) -> None:
    want = expected(problem, int8=True)
    if damage == "swapped experts":
        problem.w13 = problem.w13[[1, 0, *range(2, EXPERTS)]]
    if damage == "swapped halves":
        problem.w13 = problem.w13.roll(WIDTH, dims=1)
    if damage == "no router weight":
        problem.weights = torch.ones_like(problem.weights)
    y, _ = run(problem, use_case="a8w8-int", requant="allow")
    ratio, _ = worst_row(0.9 * y if damage == "scaled" else y, want)
    assert ratio > LIMIT


def test_counts_and_sizes(problem: Problem) -> None:
    _, state = run(problem)
    assert state.counts.tolist() == [int((problem.ids == e).sum()) for e in range(EXPERTS)]
    assert state.calls == 1
    # BF16: the operands hold the weights' bytes and nothing else.
    assert state.operands.nbytes == 2 * EXPERTS * 3 * WIDTH * HIDDEN


def test_layers_that_agree_share_a_buffer_and_others_do_not(problem: Problem) -> None:
    _, first = run(problem)
    _, second = run(problem)
    _, other = run(problem, use_case="a8w8-int", requant="allow")
    assert first.buffer is second.buffer
    assert first.buffer is not other.buffer
    close_buffers()
    with pytest.raises(ValueError, match="destroyed"):
        first.run(problem.x, problem.ids, problem.weights)


def test_x_and_router_stay_untouched(problem: Problem) -> None:
    """B50: the operator must not modify what the model still uses."""
    before = [t.clone() for t in (problem.x, problem.ids, problem.weights)]
    run(problem)
    assert all(a.equal(b) for a, b in zip(before, (problem.x, problem.ids, problem.weights), strict=True))


def test_more_rows_than_planned_are_rejected(problem: Problem) -> None:
    _, state = run(problem)
    rows = problem.x.repeat(2, 1), problem.ids.repeat(2, 1), problem.weights.repeat(2, 1)
    with pytest.raises(ValueError, match=r"74 rows in one step.*planned for 64"):
        state.run(*rows)


def test_the_op_outside_of_an_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_find", None)
    rows = torch.zeros(1, 4)
    with pytest.raises(OperatorError, match=r"no layer 'model\.layers\.0\.mlp'.*expected a running engine\. Serve"):
        torch.ops.vllm_megamoe.moe_layer(rows, rows[:, :2].int(), rows[:, :2], "model.layers.0.mlp")
