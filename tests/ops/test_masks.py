"""Tokens that take no part: x_active_mask with its effect on topk_ids, and ids of -1."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ops.calls import as_got, numerics_of
from ops.compare import check_bits, run
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case
from oracle.make import Shape, make_case

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.testing.ranks import World

# the documents give the mask to A2/A3; profile none takes it in every use case
USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]


def masked(case: Case, *masks: list[int]) -> Case:
    """The case with a mask on each rank."""
    ranks = (replace(rank, mask=np.int8(mask)) for rank, mask in zip(case.ranks, masks, strict=True))
    return replace(case, ranks=tuple(ranks))


@pytest.mark.parametrize("use_case", USE_CASES)
def test_masked_tokens_are_not_sent(use_case: str, two_ranks: World) -> None:
    case = masked(make_case(use_case, Shape(tokens=(5, 3))), [1, 0, 1, 1, 0], [0, 1, 0])
    got = check_bits(case, None, two_ranks)
    assert not got[0].y[[1, 4]].any()
    assert sum(int(g.expert_token_nums.sum()) for g in got) == 4 * 3


def test_masked_tokens_touch_nobody(two_ranks: World) -> None:
    case = make_case("a8w8-int", Shape(tokens=(5, 3)))
    whole = run(case, None, two_ranks)
    part = run(masked(case, [1, 0, 1, 1, 0], [0, 1, 0]), None, two_ranks)
    assert part[0].y[[0, 2, 3]].tobytes() == whole[0].y[[0, 2, 3]].tobytes()
    assert part[1].y[1].tobytes() == whole[1].y[1].tobytes()


def test_ids_of_masked_tokens_are_overwritten() -> None:
    # op kernel arch22, ApplyXActiveMask: the caller's tensor is changed, as on the device
    case = masked(make_case("a8w8-int", Shape()), [1, 0, 1, 1, 0])
    got = check_bits(case)[0]
    assert (got.topk_ids[[1, 4]] == case.num_experts).all()
    assert (got.topk_ids[[0, 2, 3]] == case.ranks[0].topk_ids[[0, 2, 3]]).all()


def test_strided_ids_stay_what_they_are() -> None:
    # op aclnn: a strided tensor is copied first
    case = masked(make_case("a8w8-int", Shape()), [1, 0, 1, 1, 0])
    arguments = call_arguments(case, 0, Form())
    wide = torch.zeros(5, 6, dtype=torch.int32)
    wide[:, ::2] = arguments["topk_ids"]
    before = wide.clone()
    with settings(numerics=numerics_of(case)):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
        y, counts = mega_moe(**arguments | {"topk_ids": wide[:, ::2]}, sym_buffer=buffer)
    assert wide.equal(before)
    assert as_got(y, counts, wide).y.tobytes() == run(case)[0].y.tobytes()


def test_only_the_last_of_37_rows_is_masked() -> None:
    # vllm-ascend #8560: a copy of the mask that must be aligned
    check_bits(masked(make_case("a16w16", Shape(tokens=(37,))), [1] * 36 + [0]))


def test_any_nonzero_mask_value_is_active() -> None:
    check_bits(masked(make_case("a8w8-int", Shape()), [-1, 0, 2, 127, -128]))


def test_masked_tokens_still_meet_the_shared_experts() -> None:
    # operator_readme.txt: shared experts see all tokens of the rank
    check_bits(masked(make_case("a8w8-fp", Shape(), shared=2), [1, 0, 1, 1, 0]))


def test_a_rank_without_any_active_token_still_takes_part(two_ranks: World) -> None:
    # vllm-ascend #10147
    got = check_bits(masked(make_case("a8w8-int", Shape(tokens=(5, 3))), [1] * 5, [0] * 3), None, two_ranks)
    assert not got[1].y.any()


def test_ids_of_masked_rows_may_be_anything() -> None:
    # vllm #39391: NaN logits give [0, 0, 0], stale rows any number
    case = make_case("a8w8-int", Shape())
    ids = case.ranks[0].topk_ids.copy()
    ids[1], ids[4] = 0, [-7, 99, 1 << 30]
    bad = replace(case, ranks=(replace(case.ranks[0], topk_ids=ids),))
    check_bits(masked(bad, [1, 0, 1, 1, 0]))


@pytest.mark.parametrize("use_case", USE_CASES)
def test_minus_one_contributes_nothing(use_case: str, two_ranks: World) -> None:
    case = make_case(use_case, Shape(tokens=(5, 3)))
    ids = case.ranks[0].topk_ids.copy()
    ids[0] = -1
    ids[2, 0], ids[3, 2] = -1, -1
    case = replace(case, ranks=(replace(case.ranks[0], topk_ids=ids), case.ranks[1]))
    got = check_bits(case, None, two_ranks)
    assert not got[0].y[0].any()
    assert sum(int(g.expert_token_nums.sum()) for g in got) == 8 * 3 - 5
