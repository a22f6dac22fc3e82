"""Properties on integer and dyadic data: tokens are independent of each other, of their order and of the rank count."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops.compare import run
from oracle.case import Case, Rank
from oracle.make import Shape, make_case

from vllm_megamoe.testing.ranks import World

USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]
INTEGER = ["a8w8-int", "a8w4-int"]
quick = settings(max_examples=examples(12, 150), deadline=None)
with_ranks = settings(
    max_examples=examples(8, 80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def rows(rank: Rank, index: list[int]) -> Rank:
    """Some tokens of a rank, in the given order."""
    chosen = np.array(index, int)
    mask = None if rank.mask is None else rank.mask[chosen]
    return replace(
        rank,
        x=rank.x[chosen],
        topk_ids=rank.topk_ids[chosen],
        topk_weights=rank.topk_weights[chosen],
        mask=mask,
    )


def drawn(use_case: str, tokens: int, seed: int) -> Case:
    """Grid data for the float use cases, random data for the integer ones."""
    return make_case(use_case, Shape(tokens=(tokens,)), seed=seed, grid=use_case not in INTEGER)


seeds = st.integers(0, 1 << 20)


@pytest.mark.parametrize("use_case", USE_CASES)
@quick
@given(seed=seeds, order=st.permutations(range(6)))
def test_permuting_tokens_permutes_rows(use_case: str, seed: int, order: list[int]) -> None:
    case = drawn(use_case, 6, seed)
    y = run(case)[0].y
    shuffled = run(replace(case, ranks=(rows(case.ranks[0], order),)))[0].y
    assert shuffled.tobytes() == y[order].tobytes()


@pytest.mark.parametrize("use_case", USE_CASES)
@quick
@given(seed=seeds, subset=st.sets(st.integers(0, 6), min_size=1))
def test_a_token_does_not_change_the_rows_of_others(use_case: str, seed: int, subset: set[int]) -> None:
    case = drawn(use_case, 7, seed)
    kept = sorted(subset)
    alone = run(replace(case, ranks=(rows(case.ranks[0], kept),)))[0].y
    assert alone.tobytes() == run(case)[0].y[kept].tobytes()


@pytest.mark.parametrize("use_case", ["a16w16", *INTEGER])
@quick
@given(seed=seeds, mask=st.lists(st.sampled_from([0, 1]), min_size=6, max_size=6))
def test_masked_tokens_touch_nobody(use_case: str, seed: int, mask: list[int]) -> None:
    case = drawn(use_case, 6, seed)
    active = [i for i, m in enumerate(mask) if m]
    got = run(replace(case, ranks=(replace(case.ranks[0], mask=np.int8(mask)),)))[0]
    assert got.y[active].tobytes() == run(case)[0].y[active].tobytes()
    assert int(got.expert_token_nums.sum()) == 3 * len(active)


@pytest.mark.parametrize("use_case", USE_CASES)
@quick
@given(seed=seeds, slots=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2))))
def test_an_id_of_minus_one_is_a_router_weight_of_zero(use_case: str, seed: int, slots: set[tuple[int, int]]) -> None:
    case = drawn(use_case, 4, seed)
    ids, weights = case.ranks[0].topk_ids.copy(), case.ranks[0].topk_weights.copy()
    for slot in slots:
        ids[slot], weights[slot] = -1, 0
    unsent = run(replace(case, ranks=(replace(case.ranks[0], topk_ids=ids),)))[0]
    weightless = run(replace(case, ranks=(replace(case.ranks[0], topk_weights=weights),)))[0]
    assert np.array_equal(unsent.y, weightless.y)
    assert int(unsent.expert_token_nums.sum()) == 12 - len(slots)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w4-fp"])
@with_ranks
@given(seed=seeds, first=st.integers(1, 5))
def test_splitting_experts_over_two_ranks_changes_no_row(
    use_case: str, two_ranks: World, seed: int, first: int
) -> None:
    case = drawn(use_case, 6, seed)
    halves = tuple(rows(case.ranks[0], part) for part in (list(range(first)), list(range(first, 6))))
    split = run(replace(case, ranks=halves), None, two_ranks)
    whole = run(case)[0]
    assert np.concatenate([got.y for got in split]).tobytes() == whole.y.tobytes()
    assert np.array_equal(np.concatenate([g.expert_token_nums for g in split]), whole.expert_token_nums)


@pytest.mark.parametrize("use_case", USE_CASES)
@quick
@given(seed=seeds, power=st.integers(-3, 3))
def test_router_weights_are_applied_exactly_once(use_case: str, seed: int, power: int) -> None:
    # vllm #43769: y(w s) = s y(w); with s a power of two to the bit
    case = drawn(use_case, 4, seed)
    scaled = replace(case.ranks[0], topk_weights=case.ranks[0].topk_weights * np.float32(2.0**power))
    y = run(case)[0].y
    assert np.array_equal(run(replace(case, ranks=(scaled,)))[0].y, y * np.float32(2.0**power))


@pytest.mark.parametrize("use_case", USE_CASES)
def test_same_input_same_bits(use_case: str) -> None:
    case = make_case(use_case, Shape(tokens=(9,)), grid=False)
    assert run(case)[0].y.tobytes() == run(case)[0].y.tobytes()
