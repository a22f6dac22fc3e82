"""The real `LLM(...)` of vllm-ascend, TP=2 EP=2: ready, three dummy batches, and an end that leaves nothing.

Its first token needs Triton and attention kernels: a dummy batch runs every layer's MoE, and attention without keys.
"""

from typing import Any

import pytest
from contract.support.launch import ENGINE, OPERATOR, RECORD, run

FLAG = "CONTRACT_FLAG"
"""Variable that tells the scene the value of `--quantization`."""
LAYERS, BATCHES, RANKS, TOPK, REAL = 2, 3, 2, 2, 11


@pytest.fixture(scope="module", params=["megamoe", ""], ids=["ours", "theirs"])
def life(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the engine's scene saw."""
    answer = run("a3@9.2", ["whole_engine"], 1, {FLAG: request.param}, places=[ENGINE, OPERATOR])["whole_engine"][0]
    RECORD.asked.update(answer["asked"])
    return dict(answer)


def layers(calls: dict[str, dict[str, list[int]]]) -> list[dict[str, list[int]]]:
    """One entry a rank: layer -> rows of its calls; creations left out."""
    return [{layer: rows for layer, rows in mine.items() if layer != "0"} for mine in calls.values()]


def test_each_rank_makes_one_buffer(life: dict[str, Any]) -> None:
    assert [len(mine["0"]) for mine in life["after"].values()] == [1, 1]


def test_each_layer_is_called_on_each_rank(life: dict[str, Any]) -> None:
    """The profile run calls each layer at least once; then one call for each batch, layer and rank."""
    ready, after = layers(life["ready"]), layers(life["after"])
    for before, later in zip(ready, after, strict=True):
        assert len(later) == len(before) == LAYERS
        assert len({len(rows) for rows in before.values()}) == 1
        for layer, rows in later.items():
            assert len(rows) - len(before[layer]) == BATCHES


def test_rows_are_the_same_number_on_both_ranks(life: dict[str, Any]) -> None:
    first, second = layers(life["after"])
    assert list(first.values()) == list(second.values())


def test_rows_of_requests_alone_are_counted(life: dict[str, Any]) -> None:
    """Not those of the profile run and of idle batches, whose steps count; nor padding."""
    if not life["counted"]:
        assert life["metrics"] == {}  # vllm-ascend's own path has none of ours
        return
    assert life["known as idle"] == [[True] * BATCHES + [False]] * RANKS
    assert life["idle"] == [[(BATCHES, 0)] * LAYERS] * RANKS
    assert [[steps for steps, _ in layers] for layers in life["counted"]] == [[BATCHES + 1] * LAYERS] * RANKS
    by_layer = zip(*life["counted"], strict=True)
    assert [sum(rows for _, rows in ranks) for ranks in by_layer] == [TOPK * REAL] * LAYERS


def test_metrics_reach_the_servers_process(life: dict[str, Any]) -> None:
    """By the way that /metrics has them."""
    if not life["counted"]:
        assert life["metrics"] == {}
        return
    metrics = life["metrics"]
    assert metrics["expert_rows"] == TOPK * REAL * LAYERS
    assert metrics["operator_calls"] == (BATCHES + 1) * LAYERS * RANKS
    assert metrics["dropped_rows"] == 0
    named = {name: metrics["info"][name] for name in ("backend", "profile", "ranks", "layers")}
    assert named == {"backend": "simulator", "profile": "a3@9.2", "ranks": "2", "layers": "2"}


def test_the_end_leaves_nothing(life: dict[str, Any]) -> None:
    assert life["processes"] >= 3  # the engine's core and two workers
    assert life["processes left"] == []
    assert life["blocks left"] == []
