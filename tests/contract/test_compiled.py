"""torch's compiler over a layer: one graph without a break, all of ours behind vllm-ascend's one operation."""

from typing import Any

import pytest
import torch
from contract.scenes.compiled import NAMES, TOKENS
from contract.support.cases import HIDDEN


@pytest.fixture
def ranks(a3_graphs: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return a3_graphs["compiled"]


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_returns_what_an_eager_one_does(name: str, ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        for n, eager, compiled in zip(TOKENS, answer[name]["eager"], answer[name]["compiled"], strict=True):
            assert compiled.shape == (n, HIDDEN)
            assert torch.equal(compiled, eager)
        assert answer[name]["steps"] == 2 * len(TOKENS)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_one_graph_for_each_shape(name: str, ranks: list[dict[str, Any]]) -> None:
    for answer in ranks:
        graphs = answer[name]["graphs"]
        assert len(graphs) == len(TOKENS)
        for graph in graphs:
            assert sum("moe_forward" in operation for operation in graph) == 1
            assert not any("mega" in operation for operation in graph)
