"""From a layer's experts to its operands: lists or one stack, memory, what a shared MLP becomes."""

from dataclasses import replace

import pytest
import torch
from layer.layers import ALONE, convert_routed, convert_shared, facts_of, plan_of, rows_of
from oracle.case import Case
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts
from vllm_megamoe.experts.convert import convert, cut_expert
from vllm_megamoe.layer.buffers import open_handle
from vllm_megamoe.layer.state import LayerState
from vllm_megamoe.layer.weights import RoutedWeights
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.plan.layer_plan import LayerPlan

EXPERTS, HIDDEN, WIDTH = 4, 96, 64


@pytest.fixture
def weights() -> tuple[Tensor, Tensor]:
    """w13 [E, 2I, H] and w2 [E, H, I] in BF16."""
    g = torch.Generator().manual_seed(9)
    shapes = ((EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH))
    w13, w2 = (torch.randn(shape, generator=g).mul(0.1).to(torch.bfloat16) for shape in shapes)
    return w13, w2


def case_of(use_case: str, shared: int = 0) -> Case:
    return make_case(use_case, Shape(tokens=(6,)), shared=shared)


def whole_mlp(w13: Tensor, w2: Tensor, pieces: int) -> Experts:
    """An MLP [2S, H], [H, S] as a lane hands it over."""
    return cut_expert(DenseExperts(w13[None], w2[None]), pieces)


def state_with(plan: LayerPlan, weights: tuple[Tensor, Tensor], shared: tuple[Tensor, Tensor] | None) -> LayerState:
    routed = convert_routed(*weights, plan)
    fused = convert_shared(whole_mlp(*shared, plan.shared.pieces), plan) if shared else None
    return LayerState("layer", plan, ALONE, routed, open_handle("layer", plan, ALONE), fused)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_b28_a_stack_holds_the_same_as_the_list(use_case: str, weights: tuple[Tensor, Tensor]) -> None:
    """950 of 9.1 takes one stack of all experts, A2/A3 one matrix for each."""
    case = case_of(use_case)
    plan = plan_of(case)
    listed, stacked = (state_with(p, weights, None) for p in (plan, replace(plan, stacked=True)))
    assert [matrix.dim() for matrix in listed.operands.l1] == [2] * EXPERTS
    assert isinstance(stacked.operands.l1, Tensor)
    assert stacked.operands.l1.dim() == 3
    assert stacked.operands.nbytes == listed.operands.nbytes
    rows = rows_of(case, 0)
    assert stacked.run(*rows).equal(listed.run(*rows))


def test_b28_one_expert_is_a_list_of_one(weights: tuple[Tensor, Tensor]) -> None:
    plan = plan_of(case_of("a8w8-int"))
    operands = convert_routed(*(w[:1] for w in weights), replace(plan, buffer=replace(plan.buffer, num_experts=1)))
    assert [matrix.dim() for matrix in operands.l1] == [2]


E8M0 = 2 * WIDTH * 4 + HIDDEN * 2
"""Bytes of an expert's MX scales: one for each 32 inputs, in pairs; 96 inputs have two pairs, 64 one."""

BYTES = {
    "a16w16": 2 * 3 * WIDTH * HIDDEN,
    "a8w8-int": 3 * WIDTH * HIDDEN + 8 * (2 * WIDTH + HIDDEN),  # 64-bit words
    "a8w8-fp": 3 * WIDTH * HIDDEN + E8M0,
    "a8w4-fp": 3 * WIDTH * HIDDEN // 2 + E8M0,
    # FRACTAL_NZ blocks hold 64 FP4 inputs, so 96 of them take the room of 128.
    "a4w4-fp": (2 * WIDTH * 128 + HIDDEN * WIDTH) // 2 + E8M0,
}


@pytest.mark.parametrize("use_case", list(BYTES))
def test_b27_each_use_case_has_its_scales_and_no_bias(use_case: str, weights: tuple[Tensor, Tensor]) -> None:
    """B64 beside it: a layer holds these bytes and nothing else."""
    operands = convert_routed(*weights, plan_of(case_of(use_case)))
    assert (operands.l1_bias, operands.l2_bias) == (None, None)
    assert [operands.l1_sf is None, operands.l2_sf is None] == [use_case == "a16w16"] * 2
    assert operands.nbytes == EXPERTS * BYTES[use_case]


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-fp", "a8w4-fp"])
def test_a_wide_shared_mlp_gives_what_two_narrow_ones_give(use_case: str, weights: tuple[Tensor, Tensor]) -> None:
    """One MLP of twice the routed width, and by hand the two experts that add up to it."""
    case = case_of(use_case, shared=2)
    plan = plan_of(case, facts=facts_of(case))
    assert (plan.shared.mode, plan.shared.pieces) == ("fused", 2)
    g = torch.Generator().manual_seed(4)
    gate, up = (torch.randn(2 * WIDTH, HIDDEN, generator=g).mul(0.1).to(torch.bfloat16) for _ in range(2))
    down = torch.randn(HIDDEN, 2 * WIDTH, generator=g).mul(0.1).to(torch.bfloat16)
    fused = state_with(plan, weights, (torch.cat([gate, up]), down))
    first, second = slice(0, WIDTH), slice(WIDTH, 2 * WIDTH)
    by_hand = [(torch.cat([gate[cut], up[cut]]), down[:, cut].contiguous()) for cut in (first, second)]
    narrow = convert(DenseExperts(*(torch.stack(list(part)) for part in zip(*by_hand, strict=True))), plan.use_case)
    expected = LayerState("layer", plan, ALONE, fused.operands, fused.handle, narrow)
    rows = rows_of(case, 0)
    y = fused.run(*rows)
    assert y.equal(expected.run(*rows))
    without = LayerState("layer", plan, ALONE, fused.operands, fused.handle, None)
    assert not y.equal(without.run(*rows))


def test_a_shared_mlp_of_another_size_than_planned_is_rejected(weights: tuple[Tensor, Tensor]) -> None:
    plan = plan_of(case_of("a16w16", shared=2))
    expected = r"are 1 of width 64 on rows of 96; the plan expected 2 of width 64 on rows of 96"
    with pytest.raises(ConfigError, match=expected):
        convert_shared(whole_mlp(weights[0][0], weights[1][0], 1), plan)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int"])
def test_b43_alternating_rows_give_the_operands_of_halves(use_case: str, weights: tuple[Tensor, Tensor]) -> None:
    """gpt-oss: vLLM leaves gate and up rows in turn, in every expert."""
    w13, w2 = weights
    gate, up = w13[:, :WIDTH], w13[:, WIDTH:]
    alternating = torch.stack([gate, up], dim=2).flatten(1, 2)
    assert alternating[1, 3].equal(up[1, 1])
    plan = plan_of(case_of(use_case))
    turned = replace(plan, facts=replace(plan.facts, gate_up_interleaved=True))
    expected, got = convert_routed(w13, w2, plan), convert_routed(alternating, w2, turned)
    for name in ("l1", "l2"):
        pairs = zip(getattr(expected, name), getattr(got, name), strict=True)
        assert all(inner(a).equal(inner(b)) for a, b in pairs)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("use_case", list(BYTES))
def test_an_expert_that_comes_again_is_written_where_it_was(
    use_case: str, stacked: bool, weights: tuple[Tensor, Tensor]
) -> None:
    """A captured graph and the call's arguments hold addresses; other experts keep their bytes."""
    plan = replace(plan_of(case_of(use_case)), stacked=stacked)
    held = RoutedWeights(plan, torch.bfloat16, torch.device("cpu"))
    w13, w2 = weights
    for e in range(EXPERTS):
        held.put(e, DenseExperts(w13[e : e + 1], w2[e : e + 1]))
    before = held.operands()
    places = [inner(matrix).data_ptr() for matrix in before.l1]
    held.put(1, DenseExperts(w13[3:4], w2[3:4]))
    after = held.operands()
    assert [inner(matrix).data_ptr() for matrix in after.l1] == places
    fresh = convert_routed(w13[[0, 3, 2, 3]], w2[[0, 3, 2, 3]], plan)
    for name in ("l1", "l2", "l1_sf", "l2_sf"):
        columns = [getattr(operands, name) for operands in (before, after, fresh)]
        assert columns[0] is None or all(
            inner(a).view(torch.uint8).equal(inner(b).view(torch.uint8))
            for a, b in zip(columns[1], columns[2], strict=True)
        )
