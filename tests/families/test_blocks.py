"""MoE blocks that no model class on a CPU carries, from the published config to the rows.

The plan is made from the config, the method converts the weights and calls the operator in float32, and the rows are
compared with the family's formula in float64 (formulas.py). The router's scaling factor is in the weights it gives.

The bound. A sum of K float32 products is off by u * sqrt(K / 6) of its size (compare.py), 2.4e-7 for K = 96; an
activation passes this on at most four times as large (g * sigmoid(1.702 g) * u has the steepest slope), the second
matrix adds its own sum, and a row of 96 elements is the mean of them: 2^-18 of the row leaves a factor of three.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from families import formulas as f
from families.block_configs import EXPERTS, HIDDEN, TOPK, WIDTH, WRITTEN, small_config
from families.blocks import BLOCKS
from layer.layers import convert_routed, convert_shared
from torch import Tensor

from vllm_megamoe.experts.canonical import DenseExperts
from vllm_megamoe.experts.convert import cut_expert
from vllm_megamoe.layer.buffers import open_handle
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.read_config.reader import read_layers

ROWS, LIMIT = 13, 2.0**-18
ALONE = Seat(group=None, rank=0, size=1, all_gather=lambda rows: rows)
SPREAD = 8.0
"""Standard deviation of gate and up values: a clamp at 7 or 10 holds back about a fifth of them."""


@dataclass(frozen=True)
class Problem:
    x: Tensor
    ids: Tensor
    router: Tensor
    weights: f.Weights


def make_problem(factor: float) -> Problem:
    """Random rows and weights; every expert and output row has a scale of its own."""
    g = torch.Generator().manual_seed(17)

    def matrix(*shape: int, spread: float) -> Tensor:
        uneven = 0.5 + torch.rand(*shape[:-1], 1, generator=g)
        return torch.randn(shape, generator=g) * uneven * (spread / shape[-1] ** 0.5)

    return Problem(
        x=torch.randn(ROWS, HIDDEN, generator=g),
        ids=torch.stack([torch.randperm(EXPERTS, generator=g)[:TOPK] for _ in range(ROWS)]).to(torch.int32),
        router=factor * torch.rand(ROWS, TOPK, generator=g).softmax(dim=1),
        weights=f.Weights(
            matrix(EXPERTS, 2 * WIDTH, HIDDEN, spread=SPREAD),
            matrix(EXPERTS, HIDDEN, WIDTH, spread=1.0),
            matrix(2 * WIDTH, HIDDEN, spread=SPREAD),
            matrix(HIDDEN, WIDTH, spread=1.0),
        ),
    )


@pytest.fixture
def config_of(request: pytest.FixtureRequest) -> Callable[[str], dict[str, Any]]:
    """From a family to its config; a published one needs the shared folder."""

    def read(family: str) -> dict[str, Any]:
        return WRITTEN[family] if family in WRITTEN else small_config(request.getfixturevalue("shared_dir"), family)

    return read


def plan_of(config: dict[str, Any], layer: int) -> LayerPlan:
    """The plan of one decoder layer in float32, from the config alone."""
    facts = [facts for facts in read_layers(config) if facts.index == layer and not facts.draft]
    return make_plan(EngineFacts(dtype="float32", max_num_batched_tokens=64), facts, Options(profile="none")).layers[0]


def run(problem: Problem, plan: LayerPlan) -> Tensor:
    """The layer through the method, its shared MLP too when the plan fuses it."""
    w = problem.weights
    operands = convert_routed(w.w13, w.w2, plan)
    fused = plan.shared.mode == "fused"
    mlp = cut_expert(DenseExperts(w.shared_w13[None], w.shared_w2[None]), plan.shared.pieces) if fused else None
    shared = None if mlp is None else convert_shared(mlp, plan)
    state = LayerState("layer", plan, ALONE, operands, open_handle("layer", plan, ALONE), shared)
    return state.run(problem.x, problem.ids, problem.router)


def worst(found: Tensor, expected: Tensor) -> float:
    """Largest error of a row, in lengths of the row."""
    return float(((found.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_are_the_familys_formula(name: str, config_of: Callable[[str], dict[str, Any]]) -> None:
    """B41, B43, B44: each activation with its own parameters, routed and shared."""
    block = BLOCKS[name]
    problem, plan = make_problem(block.factor), plan_of(config_of(block.family), block.layer)
    assert plan.shared.mode == ("fused" if block.shared else "vllm" if block.has_shared else "none")
    assert (plan.facts.hidden, plan.facts.intermediate_hidden) == (HIDDEN, WIDTH)
    expected = f.block(problem.x, problem.ids, problem.router, problem.weights, block.routed, block.shared)
    assert worst(run(problem, plan), expected) < LIMIT


@pytest.mark.parametrize("name", BLOCKS)
def test_another_formula_is_seen(name: str, config_of: Callable[[str], dict[str, Any]]) -> None:
    """Negative controls: the same rows are far from every formula that a mistake would compute."""
    block = BLOCKS[name]
    problem, plan = make_problem(block.factor), plan_of(config_of(block.family), block.layer)
    found, inputs = run(problem, plan), (problem.x, problem.ids, problem.router, problem.weights)
    right = f.block(*inputs, block.routed, block.shared)
    others = {"0.9 times": 0.9 * right}
    others |= {what: f.block(*inputs, activation, block.shared) for what, activation in block.wrong.items()}
    if block.shared:
        alone = f.block(*inputs, block.routed, None)
        others |= {"shared dropped": alone, "shared twice": 2 * right - alone}
        others |= {f"shared {what}": f.block(*inputs, block.routed, wrong) for what, wrong in block.wrong.items()}
    if block.factor != 1.0:
        plain = (problem.x, problem.ids, problem.router / block.factor, problem.weights)
        others["factor dropped"] = f.block(*plain, block.routed, block.shared)
    unseen = [what for what, rows in others.items() if worst(found, rows) < LIMIT]
    assert not unseen
