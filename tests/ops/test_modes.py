"""Modes of dispatch and combine: quantised combine, router weights moved forward, rows merged per card, clipping."""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check, check_bits, run
from ops.operands import Form
from oracle.case import Case
from oracle.make import Shape, make_case
from spawn import World

MX = ["a8w8-fp", "a8w4-fp", "a4w4-fp"]
PAIR = Shape(tokens=(5, 3))


@pytest.mark.parametrize("mode", [3, 4])
@pytest.mark.parametrize("use_case", MX)
def test_quantised_combine(use_case: str, mode: int, two_ranks: World) -> None:
    case = replace(make_case(use_case, PAIR, shared=1), combine_quant_mode=mode)
    got = check_bits(case, Form(blocks=True), two_ranks)
    assert (got[0].y != run(replace(case, combine_quant_mode=0), None, two_ranks)[0].y).any()


@pytest.mark.parametrize("mode", [0, 3, 4])
@pytest.mark.parametrize("use_case", MX)
def test_router_weights_moved_forward(use_case: str, mode: int, two_ranks: World) -> None:
    case = replace(make_case(use_case, PAIR, shared=2), topk_weights_type=1, combine_quant_mode=mode)
    check_bits(case, Form(stacked=True), two_ranks)
    check(replace(make_case(use_case, Shape(), grid=False), topk_weights_type=1, combine_quant_mode=mode))


@pytest.mark.parametrize("forward", [0, 1])
@pytest.mark.parametrize("use_case", MX)
def test_rows_merged_per_card(use_case: str, forward: int, two_ranks: World) -> None:
    case = replace(
        make_case(use_case, Shape(tokens=(6, 4), topk=4), grid=False, shared=1),
        combine_comm_mode=1,
        topk_weights_type=forward,
    )
    check(case, None, two_ranks)


@pytest.mark.parametrize("use_case", MX)
def test_one_expert_per_token_has_nothing_to_merge(use_case: str, two_ranks: World) -> None:
    # w = 1/2 commutes with every rounding, so both modes agree to the bit
    case = make_case(use_case, Shape(tokens=(6, 4), topk=1))
    halves = tuple(replace(r, topk_weights=np.full_like(r.topk_weights, 0.5)) for r in case.ranks)
    case = replace(case, ranks=halves)
    merged = run(replace(case, combine_comm_mode=1), None, two_ranks)
    for mine, plain in zip(merged, run(case, None, two_ranks), strict=True):
        assert mine.y.tobytes() == plain.y.tobytes()


def _crowded(ids: list[int], recv: int) -> Case:
    """4 experts on 2 ranks, 3 tokens a rank, all to the same experts."""
    case = make_case("a8w8-int", Shape(tokens=(3, 3), topk=2))
    every = np.tile(np.int32(ids), (3, 1))
    ranks = tuple(replace(rank, topk_ids=every) for rank in case.ranks)
    return replace(case, ranks=ranks, max_recv_token_num=recv)


def test_a_full_receive_buffer_loses_rows_in_silence(two_ranks: World) -> None:
    # failure log B03: 12 rows arrive, room for 8: expert 1 loses 4 of them, and the counts do not say so
    got = check_bits(_crowded([0, 1], 8), None, two_ranks)
    assert [g.expert_token_nums.tolist() for g in got] == [[6, 6], [0, 0]]
    whole = run(_crowded([0, 1], 0), None, two_ranks)
    assert (got[0].y[:2] == whole[0].y[:2]).all()  # the first two rows of expert 1 are rank 0's
    assert (got[0].y[2] != whole[0].y[2]).any()
    assert (got[1].y != whole[1].y).any(axis=1).all()


@pytest.mark.parametrize("recv", [12, 1000])
def test_room_for_all_rows_is_exact(recv: int, two_ranks: World) -> None:
    # failure log B04
    got = check_bits(_crowded([0, 1], recv), None, two_ranks)
    whole = run(_crowded([0, 1], 0), None, two_ranks)
    assert [g.y.tobytes() for g in got] == [w.y.tobytes() for w in whole]


@pytest.mark.parametrize("use_case", ["a16w16", "a8w4-int", "a8w8-fp"])
def test_clipping_counts_tokens_in_every_use_case(use_case: str, two_ranks: World) -> None:
    # failure log B05, B06: 4-bit rows travel as two, but capacity is counted in tokens
    case = replace(make_case(use_case, Shape(tokens=(7, 4), topk=3)), max_recv_token_num=9)
    check_bits(case, None, two_ranks)
