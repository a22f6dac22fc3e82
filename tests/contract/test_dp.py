"""Data parallelism: ranks with unequal rows or none make equal calls of equal rows, and each gets its own back."""

from typing import Any

import pytest
import torch
from contract.scenes.parallel import DATA_PARALLEL, STEPS, rows_of
from contract.support.cases import CASES, HIDDEN, TOPK
from contract.support.dense import dense
from contract.test_layer import WITHIN

RUNS = {"DP=2": ("a3@9.1", 2), "TP=2 x DP=2": ("a3@9.1", 4), "DP=2 on 950": ("950@9.2", 2)}
TRIES = [(step, padded) for step in STEPS for padded in (True, False)]


@pytest.fixture(scope="module", params=RUNS)
def answers(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """The product, and what each rank says."""
    from contract.support.launch import run

    product, size = RUNS[request.param]
    return product, run(product, ["parallel"], ranks=size)["parallel"]


@pytest.fixture(scope="module")
def ranks(answers: tuple[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return answers[1]


def calls_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["given"] for event in answer["events"] if event["call"] == "mega_moe"]


def real_rows(call: dict[str, Any]) -> list[int]:
    """Which rows of a call are real: by its mask, or by their ids on a 950."""
    mask = call.get("x_active_mask")
    if mask is None:
        return [int(ids != [-1] * TOPK) for ids in call["topk_ids"]["values"]]
    assert mask["shape"] == call["x"]["shape"][:1]
    values: list[int] = mask["values"]
    return values


def test_each_rank_gets_its_own_rows(answers: tuple[str, list[dict[str, Any]]]) -> None:
    """Errors as in test_layer: of the largest value for BF16, by rms of each token's where rows are rounded to FP8."""
    product, ranks = answers
    case = CASES[product][0]
    for number, answer in enumerate(ranks):
        dp_rank = number // (len(ranks) // DATA_PARALLEL)
        for step, padded in TRIES:
            got = answer["rows"][step, padded]
            assert got.shape == (step[dp_rank], HIDDEN)
            if step[dp_rank]:
                expected = dense(case, rows_of(step, dp_rank))
                error = got.double() - expected
                share = error.abs().amax(dim=1) / expected.abs().max()
                if case.use_case != "a16w16":
                    share = error.square().mean(dim=1).sqrt() / expected.square().mean(dim=1).sqrt()
                assert share.max() < WITHIN[case.use_case], f"step {step}, token {int(share.argmax())}"


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
            assert real_rows(call) == [int(tp_rank * rows + row < step[dp_rank]) for row in range(rows)]


def test_an_idle_rank_sends_nothing_and_calls_all_the_same(ranks: list[dict[str, Any]]) -> None:
    idle = TRIES.index(((6, 0), True))
    call = calls_of(ranks[-1])[idle]
    assert sum(real_rows(call)) == 0
