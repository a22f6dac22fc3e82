"""Experts from a table of token ids (DeepSeek-V4), and a draft layer beside the main one, by vllm-ascend's code."""

from typing import Any

import pytest
import torch
from contract.scenes.routing import BLOCK, DRAFTED, FACTOR, TOKENS, ids_for, table
from contract.support.cases import EXPERTS, HIDDEN, RANKS
from contract.support.dense import dense, mlp
from contract.support.values import rows_for
from contract.support.weights import gate, projections
from torch import Tensor

WITHIN = 0.01
"""Largest error as a share of the largest value: rows and results are BF16."""
METHOD = "AscendMegaMoeMethod"


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    from contract.support.launch import run

    return run("a3@9.2", ["routing"], ranks=RANKS)["routing"]


def by_table(rows: Tensor, ids: Tensor) -> Tensor:
    """DeepSeek-V4's layer: scores sqrt(softplus(logits)) of the experts in the table, which add up to the factor."""
    x = rows.double()
    chosen = table()[ids].long()
    scores = torch.log1p((x @ gate().double().t()).exp()).sqrt().gather(1, chosen)
    share = FACTOR * scores / scores.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for expert in range(EXPERTS):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        y[token] += share[token, place, None] * mlp(x[token], projections(BLOCK, *BLOCK.homes[expert]))
    return y


def worst(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).abs().max() / expected.abs().max())


def calls_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["given"] for event in answer["events"] if event["call"] == "mega_moe"]


def test_rows_go_to_the_experts_of_their_token_ids(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert answer["table"]["method"] == METHOD
        for n in TOKENS:
            assert worst(answer["table"]["rows"][n], by_table(rows_for("table", n, HIDDEN), ids_for(n))) < WITHIN


def test_ids_are_those_of_the_table(ranks: list[dict[str, Any]]) -> None:
    """Cut for each rank as its rows are; what padding holds is said by the mask."""
    for number, answer in enumerate(ranks):
        for n, call in zip(TOKENS, calls_of(answer["table"]), strict=True):
            rows = call["x"]["shape"][0]
            own = table()[ids_for(n)][number * rows : (number + 1) * rows].tolist()
            assert call["topk_ids"]["values"][: len(own)] == own
            assert call["x_active_mask"]["values"] == [1] * len(own) + [0] * (rows - len(own))


def test_a_draft_layer_is_ours_and_right(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        draft = answer["draft"]
        assert (draft["main kind"], draft["draft kind"]) == (METHOD, METHOD)
        assert (draft["main plan"], draft["draft plan"]) == ([False, "main"], [True, "main"])
        for n in TOKENS:
            expected = dense(DRAFTED, rows_for("draft", n, HIDDEN))
            assert worst(draft["main"][n], expected) < WITHIN
            assert worst(draft["draft"][n], expected) < WITHIN


def test_main_model_and_draft_share_one_buffer(ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        events = [event["call"] for event in answer["draft"]["events"]]
        assert events.count("get_symm_buffer_for_mega_moe") == 1
        assert events.count("mega_moe") == 2 * len(TOKENS)
