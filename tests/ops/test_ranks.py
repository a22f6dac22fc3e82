"""Several ranks: uneven token counts, buffers used again, the same bits whatever the number of ranks."""

from dataclasses import replace

import numpy as np
import pytest
from ops.calls import Got, as_got, numerics_of
from ops.compare import check, check_bits, compare_rank, run
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case, Rank
from oracle.make import Shape, make_case
from oracle.operator import expected

from vllm_megamoe.testing.ranks import World

USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]


@pytest.mark.parametrize("form", [Form(), Form(blocks=True, stacked=True)], ids=str)
@pytest.mark.parametrize("use_case", USE_CASES)
def test_two_ranks(use_case: str, form: Form, two_ranks: World) -> None:
    check_bits(make_case(use_case, Shape(tokens=(5, 3), experts=6)), form, two_ranks)


@pytest.mark.parametrize("use_case", USE_CASES)
def test_two_ranks_random_data(use_case: str, two_ranks: World) -> None:
    check(make_case(use_case, Shape(tokens=(4, 7)), grid=False), None, two_ranks)


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-fp"])
def test_four_ranks(use_case: str, four_ranks: World) -> None:
    check_bits(make_case(use_case, Shape(tokens=(4, 1, 3, 2), experts=8)), None, four_ranks)


@pytest.mark.parametrize("use_case", ["a8w8-int", "a8w4-int"])
def test_integer_bits_do_not_depend_on_the_number_of_ranks(use_case: str, two_ranks: World, four_ranks: World) -> None:
    four = make_case(use_case, Shape(tokens=(2, 4, 1, 3), experts=8), grid=False)

    def joined(part: list[int]) -> Rank:
        group = [four.ranks[i] for i in part]
        fields = ("x", "topk_ids", "topk_weights")
        return Rank(*(np.concatenate([getattr(rank, name) for rank in group]) for name in fields))

    def merged(*parts: list[int]) -> Case:
        return replace(four, ranks=tuple(joined(part) for part in parts))

    rows = [np.concatenate([got.y for got in run(four, None, four_ranks)])]
    rows.append(np.concatenate([got.y for got in run(merged([0, 1], [2, 3]), None, two_ranks)]))
    rows.append(run(merged([0, 1, 2, 3]))[0].y)
    assert rows[0].tobytes() == rows[1].tobytes() == rows[2].tobytes()


def _series(cases: list[Case], r: int, form: Form) -> list[Got]:
    """Calls one after another on one buffer, which is large enough for all of them."""
    from torch import distributed as dist

    from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings

    room = max(len(rank.x) for case in cases for rank in case.ranks)
    results = []
    with settings(numerics=numerics_of(cases[0])):
        expected = buffer_arguments(cases[0]) | {"num_max_tokens_per_rank": room}
        buffer = get_symm_buffer_for_mega_moe(dist.group.WORLD, **expected)
        for case in cases:
            arguments = call_arguments(case, r, form)
            y, counts = mega_moe(**arguments, sym_buffer=buffer)
            results.append(as_got(y, counts, arguments["topk_ids"]))
    return results


def test_one_buffer_serves_many_token_counts(two_ranks: World) -> None:
    cases = [
        make_case("a8w8-int", Shape(tokens=tokens), seed=seed)
        for seed, tokens in enumerate([(5, 3), (1, 6), (2, 2), (5, 3)])
    ]
    results = two_ranks.run(_series, [(cases, r, Form()) for r in range(2)])
    for i, case in enumerate(cases):
        for r, want in enumerate(expected(case)):
            compare_rank(r, results[r][i], want)


def test_one_rank_with_a_group_of_its_own_equals_no_group(two_ranks: World) -> None:
    case = make_case("a8w8-int", Shape())
    with_group = two_ranks.run(_alone, [(case,), (case,)])
    assert {got.y.tobytes() for got in with_group} == {run(case)[0].y.tobytes()}


def _alone(case: Case) -> Got:
    """The call on a group of this rank only."""
    from torch import distributed as dist

    from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings

    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    with settings(numerics=numerics_of(case)):
        buffer = get_symm_buffer_for_mega_moe(groups[dist.get_rank()], **buffer_arguments(case))
        arguments = call_arguments(case, 0, Form())
        y, counts = mega_moe(**arguments, sym_buffer=buffer)
    return as_got(y, counts, arguments["topk_ids"])


def _by_name(case: Case, r: int) -> Got:
    """The call on a buffer that was made from the group's name."""
    from torch import distributed as dist

    from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings

    group = dist.new_group(list(range(dist.get_world_size())))
    with settings(numerics=numerics_of(case)):
        buffer = get_symm_buffer_for_mega_moe(group.group_name, **buffer_arguments(case))
        assert (buffer.group_name, buffer.rank_id, buffer.ep_world_size) == (group.group_name, r, len(case.ranks))
        arguments = call_arguments(case, r, Form())
        y, counts = mega_moe(**arguments, sym_buffer=buffer)
    return as_got(y, counts, arguments["topk_ids"])


def test_a_group_may_be_given_by_its_name(two_ranks: World) -> None:
    # torch_api.txt: group is the communicator's name
    case = make_case("a8w8-int", Shape(tokens=(5, 3)))
    named = two_ranks.run(_by_name, [(case, r) for r in range(2)])
    for r, want in enumerate(expected(case)):
        compare_rank(r, named[r], want)
