"""Checkpoints whose config already names a method, and experts that are quantised at load."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import named_megamoe, with_int8_attention
from engines import EAGER, MEGAMOE, TP2, Engines

pytestmark = pytest.mark.engine

FLOAT32 = {"dtype": "float32"}


def ask(prompts: list[list[int]]) -> list[dict[str, Any]]:
    return [{"do": "greedy", "prompts": prompts[:8], "max_tokens": 8}, {"do": "layers"}]


def tokens(results: list[dict[str, Any]]) -> list[list[int]]:
    return [result["tokens"] for result in results]


@pytest.mark.full
def test_linear_layers_keep_the_checkpoints_own_method(
    engines: Engines, checkpoint: str, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """int8 attention by compressed-tensors, BF16 experts: the same tokens as vLLM without the plugin's flag."""
    mixed = str(with_int8_attention(Path(checkpoint), tmp_path_factory.mktemp("mixed") / "model"))
    (plain,) = engines.run({"model": mixed, **FLOAT32, **EAGER}, ask(prompts)[:1])
    ours, layers = engines.run({"model": mixed, **FLOAT32, **MEGAMOE, **EAGER}, ask(prompts))
    assert tokens(ours) == tokens(plain)
    assert [layer["use_case"] for layer in layers[0]] == ["a16w16", "a16w16"]


def test_requantised_experts_serve_and_are_integers(
    engines: Engines, checkpoint: str, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """a8w8-int by consent, on a checkpoint that names megamoe itself; two ranks, buffers shared by the layers."""
    named = str(named_megamoe(Path(checkpoint), tmp_path_factory.mktemp("named") / "model"))
    options = {"megamoe": {"use_case": "a8w8-int", "requant": "allow"}}
    llm = {"model": named, **TP2, **EAGER, "additional_config": options}
    generated, workers = engines.run(llm, ask(prompts))
    assert all(len(result["tokens"]) == 8 for result in generated)
    assert len(workers) == 2
    for layers in workers:
        assert [layer["use_case"] for layer in layers] == ["a8w8-int", "a8w8-int"]
        assert {layer["weights_left"] for layer in layers} == {0}
        assert len({layer["buffer"] for layer in layers}) == 1
        assert len({layer["calls"] for layer in layers}) == 1
        assert min(layer["calls"] for layer in layers) > 0
    # Every row of both ranks is counted once by the rank that holds its expert: top-2 of each row.
    for a, b in zip(workers[0], workers[1], strict=True):
        assert (sum(a["counts"]) + sum(b["counts"])) % 2 == 0
