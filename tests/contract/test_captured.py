"""Graphs: captured by vllm-ascend's own wrapper, replayed on the simulated device, and what no capture may do.

A replay runs no Python of ours, only what the capture has noted, so what it returns and counts is the device's.
"""

from typing import Any

import pytest
import torch
from contract.scenes.captured import NAMES, REAL, WRONG
from contract.support.cases import CASES, HIDDEN

EVERY = [
    pytest.param(product, case.name, id=f"{product}-{case.name}")
    for product in ("a3@9.2", "950@9.2")
    for case in CASES[product]
    if case.name in NAMES
]
SHARED = ("shared", "fused")
"""Cases whose shared experts see every row."""
SAID = {
    "reads": "__bool__ while a graph is captured",
    "asks for values": "tolist while a graph is captured",
    "sends from the host": "tensor while a graph is captured",
    "makes a buffer": "a call while a graph is captured; expected no graph capture",
}


@pytest.fixture
def ranks(request: pytest.FixtureRequest, product: str) -> list[dict[str, Any]]:
    pair = request.getfixturevalue("a950_graphs" if product.startswith("950") else "a3_graphs")
    return list(pair["captured"])


@pytest.mark.parametrize(("product", "name"), EVERY)
def test_a_replay_returns_what_an_eager_step_does(product: str, name: str, ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        case = answer["cases"][name]
        assert case["graphs"] == 1
        for real, eager, replayed in zip(REAL, case["eager"], case["replayed"], strict=True):
            assert replayed.shape == (real, HIDDEN)
            assert torch.equal(replayed, eager)


@pytest.mark.parametrize(("product", "name"), EVERY)
def test_counters_advance_in_replays(product: str, name: str, ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        case = answer["cases"][name]
        assert case["replayed counters"]["steps"] == len(REAL)
        assert case["replayed counters"] == case["eager counters"]
    total = sum(sum(answer["cases"][name]["replayed counters"]["counts"]) for answer in ranks)
    assert total == 2 * sum(REAL)  # two experts for each real token, none for padding


@pytest.mark.parametrize(("product", "name"), EVERY)
def test_rows_of_an_idle_batch_are_nobodys_in_a_replay(product: str, name: str, ranks: list[dict[str, Any]]) -> None:
    """The graph reads the mask, which says so; the step counts."""
    for answer in ranks:
        case = answer["cases"][name]
        before, after = case["replayed counters"], case["counters after idle"]
        assert after["counts"] == before["counts"]
        assert after["steps"] == before["steps"] + 1
        if name not in SHARED:
            assert case["idle"].abs().max() == 0


@pytest.mark.parametrize(("product", "name"), EVERY)
def test_nothing_of_the_graphs_memory_is_kept(product: str, name: str, ranks: list[dict[str, Any]]) -> None:
    """The next graph of the pool writes into it."""
    for answer in ranks:
        assert answer["cases"][name]["kept"] == []
        assert answer["kept"] == [[8, HIDDEN]]  # a layer that keeps its result is noticed


@pytest.mark.parametrize("product", ["a3@9.2", "950@9.2"])
@pytest.mark.parametrize("name", WRONG)
def test_what_a_device_cannot_capture_is_an_error(product: str, name: str, ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert SAID[name] in answer["wrong"][name]


@pytest.mark.parametrize("product", ["a3@9.2", "950@9.2"])
def test_the_load_report_is_silent_until_captures_are_over(product: str, ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        assert answer["report"] == {"in captures": False, "after them": True}
