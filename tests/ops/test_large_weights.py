"""Weights beyond a block of scratch: sums over more than 1024 numbers, several blocks, no weight unpacked at once."""

from dataclasses import replace

import pytest
from ops.compare import check, compare_rank, run
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from oracle.operator import expected
from torch.profiler import ProfilerActivity, profile

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings

# 2080 x 1152 and 576 x 2080: both weights are larger than 2^20 numbers, and neither is a multiple of anything round
LARGE = Shape(tokens=(3,), experts=1, hidden=2080, intermediate=576, topk=1)
USE_CASES = ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"]


@pytest.mark.parametrize("use_case", USE_CASES)
def test_bits(use_case: str) -> None:
    case = make_case(use_case, LARGE)
    (want,) = expected(case)
    assert want.y.exact
    for form in (Form(), Form(blocks=True, stacked=True)):
        compare_rank(0, run(case, form)[0], want)


@pytest.mark.parametrize("merged", [0, 1])
def test_many_tokens(merged: int) -> None:
    # 3 rows of 2080 numbers for each of 230 tokens: more than 2^20 numbers come back
    shape = Shape(tokens=(230,), hidden=2080, intermediate=32)
    case = replace(make_case("a8w8-int", shape, grid=False), combine_comm_mode=merged)
    ids = case.ranks[0].topk_ids.copy()
    ids[::7, 1] = -1
    check(replace(case, ranks=(replace(case.ranks[0], topk_ids=ids),)))


@pytest.mark.parametrize("use_case", USE_CASES)
def test_no_weight_is_unpacked_as_a_whole(use_case: str) -> None:
    case = make_case(use_case, LARGE)
    arguments = call_arguments(case, 0, Form(blocks=True))
    with settings(plain_copy=False):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            mega_moe(**arguments, sym_buffer=buffer)
    taken = [event.self_cpu_memory_usage for event in seen.events()]
    whole = 1152 * 2080  # the first weight in bytes, were it unpacked to 8 bits
    assert len(taken) > 20, "the operator's inner operations were not seen"
    assert 0 < max(taken) < 2 * whole, "as large as a weight in 16 bits"


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-fp"])
def test_a_plain_copy_changes_no_bit(use_case: str) -> None:
    case = make_case(use_case, Shape(), grid=False)
    arguments = call_arguments(case, 0, Form(blocks=True))
    with settings(plain_copy=True):
        buffer = get_symm_buffer_for_mega_moe(None, **buffer_arguments(case))
        y, _ = mega_moe(**arguments, sym_buffer=buffer)
    assert y.float().numpy().tobytes() == run(case, Form(blocks=True))[0].y.tobytes()
