"""Modes of dispatch and combine: quantised combine, router weights moved forward, rows merged per card, clipping."""

from dataclasses import replace

import numpy as np
import pytest
from ops.compare import check, check_bits, run
from ops.operands import Form
from oracle import formats
from oracle.case import Case, Mx
from oracle.make import Shape, make_case

from vllm_megamoe.testing.ranks import World

MX = ["a8w8-fp", "a8w4-fp", "a4w4-fp"]
# the documents describe the modes for 950; profile none takes them in every use case
ALL = ["a16w16", "a8w8-int", "a8w4-int", *MX]
SHARED = [use_case for use_case in ALL if use_case != "a8w4-int"]  # shared experts take no bias
PAIR = Shape(tokens=(5, 3))


@pytest.mark.parametrize("mode", [3, 4])
@pytest.mark.parametrize("use_case", ALL)
def test_quantised_combine(use_case: str, mode: int, two_ranks: World) -> None:
    case = replace(make_case(use_case, PAIR, shared=int(use_case in SHARED)), combine_quant_mode=mode)
    got = check_bits(case, Form(blocks=True), two_ranks)
    assert (got[0].y != run(replace(case, combine_quant_mode=0), None, two_ranks)[0].y).any()


@pytest.mark.parametrize("mode", [0, 3, 4])
@pytest.mark.parametrize("use_case", ALL)
def test_router_weights_moved_forward(use_case: str, mode: int, two_ranks: World) -> None:
    shared = 2 if use_case in SHARED else 0
    case = replace(make_case(use_case, PAIR, shared=shared), topk_weights_type=1, combine_quant_mode=mode)
    check_bits(case, Form(stacked=True), two_ranks)
    check(replace(make_case(use_case, Shape(), grid=False), topk_weights_type=1, combine_quant_mode=mode))


@pytest.mark.parametrize("merged", [0, 1])
@pytest.mark.parametrize("use_case", ALL)
def test_one_token_for_one_expert_with_its_weight(use_case: str, merged: int) -> None:
    # a single record whose float32 part starts at an odd byte: 96 codes and 3 scales come before it
    case = make_case(use_case, Shape(tokens=(1,), topk=1))
    check(replace(case, topk_weights_type=1, combine_comm_mode=merged))


@pytest.mark.parametrize("forward", [0, 1])
@pytest.mark.parametrize("use_case", ALL)
def test_rows_merged_per_card(use_case: str, forward: int, two_ranks: World) -> None:
    case = replace(
        make_case(use_case, Shape(tokens=(6, 4), topk=4), grid=False, shared=int(use_case in SHARED)),
        combine_comm_mode=1,
        topk_weights_type=forward,
    )
    check(case, None, two_ranks)


def _short_rows(forward: int) -> Case:
    """A case in which every row that returns is a number of few bits, and every sum of them is exact in fp32.

    The second weight picks single activations, and these are E4M3 numbers: bf16 holds the rows, so it does not matter
    whether they are rounded before a card adds them. Router weights are 16ths.
    """
    case = make_case("a8w8-fp", Shape(tokens=(6, 4), topk=4))
    assert isinstance(case.experts, Mx)
    rng = np.random.default_rng(3)
    w2 = np.zeros(case.experts.w2.shape, np.float32)
    for e, h in np.ndindex(*w2.shape[:2]):
        w2[e, h, rng.integers(w2.shape[2])] = rng.choice([1, -1])
    experts = replace(case.experts, w2=formats.encode(w2, "e4m3"), s2=np.full_like(case.experts.s2, 127))
    ranks = tuple(
        replace(r, topk_weights=np.float32(rng.integers(1, 16, r.topk_weights.shape) / 16)) for r in case.ranks
    )
    return replace(case, experts=experts, ranks=ranks, combine_comm_mode=1, topk_weights_type=forward)


@pytest.mark.parametrize("forward", [0, 1])
def test_bits_of_rows_merged_per_card(forward: int, two_ranks: World) -> None:
    # one rounding to bf16 for each card, then one for the sum of the cards: operator_readme.txt, combineCommMode
    case = _short_rows(forward)
    merged = check_bits(case, None, two_ranks)
    plain = run(replace(case, combine_comm_mode=0), None, two_ranks)
    if not forward:  # unweighted rows of 4 bits each are added without any rounding either way
        assert (merged[0].y != plain[0].y).any()


@pytest.mark.parametrize("use_case", ALL)
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
    # vllm-ascend #11258: 12 rows arrive, room for 8: expert 1 loses 4 of them, and the counts do not say so
    got = check_bits(_crowded([0, 1], 8), None, two_ranks)
    assert [g.expert_token_nums.tolist() for g in got] == [[6, 6], [0, 0]]
    whole = run(_crowded([0, 1], 0), None, two_ranks)
    assert (got[0].y[:2] == whole[0].y[:2]).all()  # the first two rows of expert 1 are rank 0's
    assert (got[0].y[2] != whole[0].y[2]).any()
    assert (got[1].y != whole[1].y).any(axis=1).all()


@pytest.mark.parametrize("recv", [12, 1000])
def test_room_for_all_rows_is_exact(recv: int, two_ranks: World) -> None:
    # vllm-ascend #14730
    got = check_bits(_crowded([0, 1], recv), None, two_ranks)
    whole = run(_crowded([0, 1], 0), None, two_ranks)
    assert [g.y.tobytes() for g in got] == [w.y.tobytes() for w in whole]


@pytest.mark.parametrize("use_case", ALL)
def test_clipping_counts_tokens_in_every_use_case(use_case: str, two_ranks: World) -> None:
    # vllm-ascend #14926, #14869: 4-bit rows travel as two, but capacity is counted in tokens
    case = replace(make_case(use_case, Shape(tokens=(7, 4), topk=3)), max_recv_token_num=9)
    check_bits(case, None, two_ranks)
