"""A product's rules in force: the engine runs what the plan said before it started, and the rows stay right.

The workspace budget is set so low that the plan cuts a large step into several calls; on A3 each call's rows are padded
to the same number on both ranks, with a mask.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from engine.engines import EAGER, MEGAMOE, TP2, Engines, Prompts
from engine.steps import layers
from engine.test_bfloat16 import check, fed_with, own_path

from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.layer_plan import Plan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.read_config.reader import read_layers

pytestmark = pytest.mark.engine

OPTIONS = {"profile": "a3@9.2", "workspace_budget_gib": 0.0325}


@pytest.fixture(scope="module")
def plan(checkpoint: str) -> Plan:
    """From config.json alone, as the command line makes it."""
    config = json.loads((Path(checkpoint) / "config.json").read_text())
    engine = EngineFacts("bfloat16", tensor_parallel=2, expert_parallel=True, max_num_batched_tokens=2048)
    return make_plan(engine, read_layers(config), Options(**OPTIONS))


@pytest.fixture(scope="module")
def baseline(engines: Engines, checkpoint: str, prompts: Prompts) -> dict[str, Any]:
    return own_path(engines, checkpoint, prompts)


@pytest.fixture(scope="module")
def run(engines: Engines, checkpoint: str, prompts: Prompts, baseline: dict[str, Any]) -> list[list[Any]]:
    """On each rank: the layers before, the answers, the layers after."""
    llm = {
        "model": checkpoint,
        **MEGAMOE,
        **TP2,
        **EAGER,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": False,
        "additional_config": {"megamoe": OPTIONS},
    }
    return engines.run(llm, [layers, fed_with(baseline, prompts), layers])


def test_rows_cut_into_calls_and_padded_stay_right(
    checkpoint: str, baseline: dict[str, Any], run: list[list[Any]]
) -> None:
    for _, top, _ in run:
        check(checkpoint, baseline["top"], top)


def test_the_engine_is_what_the_plan_said(plan: Plan, run: list[list[Any]]) -> None:
    capacity = plan.layers[0].capacity
    assert capacity.calls > 1
    for _, _, rank in run:
        assert [layer["name"].split(".experts")[0] for layer in rank] == [
            layer.facts.name.split(".experts")[0] for layer in plan.layers
        ]
        for layer, planned in zip(rank, plan.layers, strict=True):
            assert layer["bytes"] == layer["plan_bytes"] == planned.weight_bytes
            assert layer["num_max_tokens_per_rank"] == layer["chunk"] == planned.capacity.chunk


def test_the_step_makes_as_many_calls_as_planned_on_both_ranks(
    plan: Plan, run: list[list[Any]], baseline: dict[str, Any]
) -> None:
    """All sequences fit into one step of 2048 tokens, whose rows the two ranks share."""
    rows = -(-sum(len(sequence) for sequence in baseline["sequences"]) // 2)
    calls = -(-rows // plan.layers[0].capacity.chunk)
    assert calls > 1
    before, after = ([[(layer["steps"], layer["calls"]) for layer in rank[n]] for rank in run] for n in (0, 2))
    assert before == [[(0, 0)] * 2] * 2
    assert after == [[(1, calls)] * 2] * 2


def test_padding_reaches_no_expert(run: list[list[Any]], baseline: dict[str, Any]) -> None:
    """Each row goes to two experts and to no more. Every token is run once, as part of its prompt."""
    rows = sum(len(sequence) for sequence in baseline["sequences"])
    for index in range(2):
        assert sum(sum(rank[2][index]["counts"]) for rank in run) == 2 * rows
