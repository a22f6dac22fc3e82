"""Shared experts: local tokens, unweighted, added last in their order; own weight and quantisation types."""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check, check_bits, run
from ops.operands import Form
from oracle.case import Case
from oracle.make import Shape, make_case, make_experts

from vllm_megamoe.testing.ranks import World

# routed use case, elements of the shared weights and of their dispatch (None: that of the routed experts)
MIXED = [
    ("a8w8-fp", "e2m1", None),
    ("a8w8-fp", "e2m1", "e2m1"),
    ("a8w4-fp", "e4m3", None),
    ("a8w4-fp", "e2m1", "e2m1"),
    ("a4w4-fp", "e4m3", "e4m3"),
    ("a4w4-fp", "e5m2", "e5m2"),
    ("a4w4-fp", "e2m1", "e4m3"),
]


def mixed_case(use_case: str, weight: str, dispatch: str | None, tokens: tuple[int, ...], count: int = 2) -> Case:
    """Shared experts of another kind than the routed ones, different on each rank."""
    shape = Shape(tokens=tokens)
    case = make_case(use_case, shape)
    rng = np.random.default_rng(11)
    ranks = tuple(
        replace(rank, shared=make_experts(rng, "a8w8-fp", shape, count, grid=True, elem=weight)) for rank in case.ranks
    )
    return replace(case, ranks=ranks, shared_elem=dispatch)


# the documents describe them for 950's types; profile none takes all types that need no bias
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_one_to_four(use_case: str, count: int, two_ranks: World) -> None:
    check_bits(make_case(use_case, Shape(tokens=(5, 3)), shared=count), Form(blocks=count % 2 == 1), two_ranks)


@pytest.mark.parametrize("form", [Form(), Form(blocks=True, stacked=True)], ids=str)
@pytest.mark.parametrize(("use_case", "weight", "dispatch"), MIXED)
def test_another_kind_than_the_routed_experts(
    use_case: str, weight: str, dispatch: str | None, form: Form, two_ranks: World
) -> None:
    check_bits(mixed_case(use_case, weight, dispatch, (5, 3)), form, two_ranks)


def test_each_shared_expert_counts_once() -> None:
    # vllm #49378: once, twice and never are different results; router weights do not touch it
    case = make_case("a8w8-fp", Shape(), shared=1)
    idle = replace(case.ranks[0], topk_ids=np.full_like(case.ranks[0].topk_ids, -1))
    alone = run(replace(case, ranks=(idle,)))[0]
    heavier = replace(idle, topk_weights=idle.topk_weights * 2)
    assert alone.y.any()
    assert run(replace(case, ranks=(heavier,)))[0].y.tobytes() == alone.y.tobytes()
    assert alone.expert_token_nums.sum() == 0
    check_bits(replace(case, ranks=(idle,)))


@pytest.mark.parametrize("use_case", ["a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_random_data(use_case: str) -> None:
    check(make_case(use_case, Shape(), shared=2, grid=False))
