"""Data parallelism: ranks with unequal rows or none make equal calls of equal rows, and each gets its own back."""

from typing import Any

import pytest
import torch
from contract.scenes.parallel import DATA_PARALLEL, STEPS, rows_of
from contract.support.cases import CASES, HIDDEN
from contract.support.dense import dense

SIZES = {"DP=2": 2, "TP=2 x DP=2": 4}
PRODUCT = "a3@9.1"
TRIES = [(step, padded) for step in STEPS for padded in (True, False)]


@pytest.fixture(scope="module", params=SIZES)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    from contract.support.launch import run

    return run(PRODUCT, ["parallel"], ranks=SIZES[request.param])["parallel"]


def calls_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["given"] for event in answer["events"] if event["call"] == "mega_moe"]


def test_each_rank_gets_its_own_rows(ranks: list[dict[str, Any]]) -> None:
    case = CASES[PRODUCT][0]
    for number, answer in enumerate(ranks):
        dp_rank = number // (len(ranks) // DATA_PARALLEL)
        for step, padded in TRIES:
            got = answer["rows"][step, padded]
            assert got.shape == (step[dp_rank], HIDDEN)
            if step[dp_rank]:
                expected = dense(case, rows_of(step, dp_rank))
                error = (got.double() - expected).abs().amax(dim=1)
                assert error.max() < 0.01 * expected.abs().max(), f"step {step}, token {int(error.argmax())}"


def test_ranks_of_a_tensor_parallel_group_return_the_same_rows(ranks: list[dict[str, Any]]) -> None:
    together = len(ranks) // DATA_PARALLEL
    for first in range(0, len(ranks), together):
        for each in range(first, first + together):
            for key, rows in ranks[first]["rows"].items():
                assert torch.equal(rows, ranks[each]["rows"][key])


def test_calls_and_their_rows_are_equal_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    shapes = [[call["x"]["shape"] for call in calls_of(answer)] for answer in ranks]
    together = len(ranks) // DATA_PARALLEL
    assert shapes[0] == [[-(-max(step) // together), HIDDEN] for step, _ in TRIES]
    assert all(each == shapes[0] for each in shapes)


def test_masks_say_which_rows_are_real(ranks: list[dict[str, Any]]) -> None:
    together = len(ranks) // DATA_PARALLEL
    for number, answer in enumerate(ranks):
        dp_rank, tp_rank = divmod(number, together)
        for (step, _), call in zip(TRIES, calls_of(answer), strict=True):
            rows = call["x"]["shape"][0]
            mask = [int(tp_rank * rows + row < step[dp_rank]) for row in range(rows)]
            assert call["x_active_mask"]["shape"] == [rows]
            assert call["x_active_mask"]["values"] == mask


def test_an_idle_rank_sends_nothing_and_calls_all_the_same(ranks: list[dict[str, Any]]) -> None:
    idle = TRIES.index(((6, 0), True))
    call = calls_of(ranks[-1])[idle]
    assert sum(call["x_active_mask"]["values"]) == 0
