"""One plan per engine: it reaches every process and layer as it was made, and what runs is compared with it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lanes.live.tiny_configs import TINY

from vllm_megamoe.checkpoint.formats import Known
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.carried import Carried, LiveFacts
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan

SCRIPT = Path(__file__).parent / "live" / "carry.py"


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each case of carry.py: one process builds them all."""
    place = tmp_path_factory.mktemp("carry")
    models = ("Mixtral", "Qwen2-MoE", "Qwen3-MoE", "DeepSeek-V3")
    (place / "configs.json").write_text(json.dumps({name: TINY[name] for name in models}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(place / "configs.json"), str(place)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("CASE "):
            found |= json.loads(line.removeprefix("CASE "))
    assert found, done.stderr[-3000:]
    return found


def test_the_plan_survives_every_way_that_vllm_hands_a_config_on(ends: dict[str, Any]) -> None:
    assert len(ends["ways_to_travel"]) == 7
    assert set(ends["ways_to_travel"].values()) == {True}


def test_it_is_made_once(ends: dict[str, Any]) -> None:
    assert ends["planned_once"] == 1


def test_what_the_platform_changes_is_planned(ends: dict[str, Any]) -> None:
    given, rows, raised, rows_then = ends["platform_raises_the_rows"]
    assert raised == given + 1000
    assert (rows, rows_then) == (given, raised)


def test_draft_layers_are_planned_where_speculation_loads_them(ends: dict[str, Any]) -> None:
    """The tiny DeepSeek-V3 has six decoder layers, MoE layers are 2 and 4 of them, its MTP layer is number 6."""
    decoder = ["model.layers.2.mlp.experts", "model.layers.4.mlp.experts"]
    assert ends["layers_by_speculation"] == {
        "none": decoder,
        "ngram": decoder,
        "mtp": [*decoder, "model.layers.6.mlp.experts"],
    }


def test_taught_facts_reach_the_layer(ends: dict[str, Any]) -> None:
    """The process of the layer was taught nothing; the index of -1 is the teacher's alone."""
    facts = ends["taught_facts"]
    assert [f["name"] for f in facts] == [f"model.layers.{i}.block_sparse_moe.experts" for i in range(5)]
    assert {(f["index"], f["model_hidden"], f["topk"]) for f in facts} == {(-1, 0, 3)}


@pytest.mark.parametrize(
    ("case", "parts"),
    {
        "taught_wrongly": [
            "model.layers.0.block_sparse_moe.experts",
            "topk: 2 in the plan, 3 in the running layer",
            "intermediate_hidden: 32 in the plan, 160 in the running layer",
            "register_model_facts('MixtralForCausalLM', fn)",
        ],
        "taught_too_few": [
            "model.layers.3.block_sparse_moe.experts",
            "no layer of this name or number among the 3 that were planned",
            "register_model_facts('MixtralForCausalLM', fn)",
        ],
        "taught_without_shared_experts": ["shared: None in the plan, SharedFacts(intermediate_hidden=80"],
        "another_engine": ["max_num_batched_tokens: ", " in the plan, ", "in the running layer"],
    }.items(),
)
def test_a_difference_names_both(case: str, parts: list[str], ends: dict[str, Any]) -> None:
    assert ends[case]["error"] == "ConfigError", ends[case]
    for part in parts:
        assert part in ends[case]["message"]


def test_a_guess_that_is_right_is_carried_in_silence(ends: dict[str, Any]) -> None:
    found = ends["unknown_and_right"]
    assert (found["planned"], len(found["facts"]), found["heard"]) == (1, 1, [])


@pytest.mark.parametrize(
    ("case", "planned", "words"),
    [
        ("unknown_and_wrong", 5, "intermediate_hidden: 64 in the plan, 48 in the running layer"),
        ("unknown_without_experts", 0, "no layer of this name or number among the 0 that were planned"),
    ],
)
def test_a_guess_that_is_wrong_runs_as_the_layer_is_and_says_so(
    case: str, planned: int, words: str, ends: dict[str, Any]
) -> None:
    found = ends[case]
    assert found["planned"] == planned
    # The tiny Qwen3-MoE has one MoE layer: number 1.
    (facts,) = found["facts"]
    assert (facts["intermediate_hidden"], facts["num_experts"], facts["topk"]) == (48, 8, 3)
    (line,) = found["heard"]
    assert "model.layers.1.mlp.experts: Qwen3MoeForCausalLM is read by guess" in line
    assert words in line
    assert "register_model_facts" in line


# What follows needs no vLLM: the comparison itself, field by field.

ENGINE = EngineFacts(dtype="bfloat16", tensor_parallel=2, data_parallel=2, expert_parallel=True)
SHARED = SharedFacts(96, 64, ActivationFacts("silu", 7.0))
FACTS = MoeFacts(
    "model.layers.3.mlp.experts",
    num_experts=8,
    topk=2,
    hidden=64,
    intermediate_hidden=48,
    index=3,
    activation=ActivationFacts("silu", 7.0),
    shared=SHARED,
    routed_scaling_factor=2.5,
    scale_on_output=True,
    model_hidden=64,
)


def carried(*layers: MoeFacts, **more: Any) -> Carried:
    plan = make_plan(ENGINE, layers or [FACTS], Options())
    return Carried(plan, **{"architecture": "Tiny", "known": True, "num_layers": 4} | more)


def live(layer: MoeFacts = FACTS, *, whole: bool = True, draft: bool = False, **engine: Any) -> LiveFacts:
    return LiveFacts(replace(ENGINE, **{"sequence_parallel": True} | engine), layer, whole, draft)


def refusal(planned: Carried, running: LiveFacts) -> str:
    with pytest.raises(ConfigError) as error:
        planned.plan_of(running)
    return str(error.value)


def test_a_layer_gets_the_very_plan_that_was_made() -> None:
    planned = carried()
    assert planned.plan_of(live()) is planned.plan.layers[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": 16}, "num_experts: 8 in the plan, 16 in"),
        ({"topk": 1}, "topk: 2 in the plan, 1 in"),
        ({"hidden": 128}, "hidden: 64 in the plan, 128 in"),
        ({"intermediate_hidden": 64}, "intermediate_hidden: 48 in the plan, 64 in"),
        ({"activation": ActivationFacts("silu", 10.0)}, "activation.limit: 7.0 in the plan, 10.0 in"),
        ({"gate_up_interleaved": True}, "gate_up_interleaved: False in the plan, True in"),
        ({"has_bias": True}, "has_bias: False in the plan, True in"),
        ({"router_weight_on_input": True}, "router_weight_on_input: False in the plan, True in"),
        ({"experts_format": Known("fp8-block")}, "experts_format: bf16 in the plan, fp8-block in"),
        ({"shared": None}, "shared: SharedFacts(intermediate_hidden=96"),
        ({"shared": replace(SHARED, gated=True)}, "shared.gated: False in the plan, True in"),
        ({"routed_scaling_factor": 1.5}, "routed_scaling_factor: 2.5 in the plan, 1.5 in"),
        ({"scale_on_output": False}, "scale_on_output: True in the plan, False in"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_fact_that_decides_is_compared(change: dict[str, Any], words: str) -> None:
    said = refusal(carried(), live(replace(FACTS, **change)))
    assert words in said
    assert said.startswith("model.layers.3.mlp.experts: ")
    assert "register_model_facts('Tiny', fn)" in said


def test_what_only_names_or_shows_a_layer_is_not_compared() -> None:
    planned = carried()
    running = live(replace(FACTS, index=-1, model_hidden=0))
    assert planned.plan_of(running) is planned.plan.layers[0]


def test_without_its_runner_a_layer_shows_neither_shared_experts_nor_a_factor_on_the_output() -> None:
    planned = carried()
    bare = replace(FACTS, shared=None, routed_scaling_factor=1.0, scale_on_output=False)
    assert planned.plan_of(live(bare, whole=False)) is planned.plan.layers[0]
    said = refusal(planned, live(replace(bare, routed_scaling_factor=2.5), whole=False))
    assert "routed_scaling_factor: 1.0 in the plan, 2.5 in" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float32"}, "dtype: 'bfloat16' in the plan, 'float32' in"),
        ({"tensor_parallel": 1}, "tensor_parallel: 2 in the plan, 1 in"),
        ({"max_num_batched_tokens": 4096}, "max_num_batched_tokens: 2048 in the plan, 4096 in"),
        ({"hccl_buffsize_mb": 100}, "hccl_buffsize_mb: None in the plan, 100 in"),
    ],
    ids=str,
)
def test_the_engine_is_compared_too(change: dict[str, Any], words: str) -> None:
    assert words in refusal(carried(), live(**change))


def test_rows_that_a_layer_does_not_split_are_rejected() -> None:
    """Tensor and data parallel at once, and a family of which nobody knows: the layer says it."""
    said = refusal(carried(), live(sequence_parallel=False))
    assert "tensor-parallel ranks" in said
    assert "rows" in said


def test_a_layer_must_split_its_rows_where_its_family_does() -> None:
    planned = carried(replace(FACTS, splits_rows="always"))
    assert planned.plan_of(live()) is planned.plan.layers[0]
    said = refusal(planned, live(sequence_parallel=False))
    assert "rows split over tensor-parallel ranks: True in the plan, False in the running layer" in said


def test_one_kind_of_parallelism_splits_no_rows() -> None:
    """A family's word counts with both kinds only: vLLM splits nothing else (use_sequence_parallel_moe)."""
    alone = replace(ENGINE, data_parallel=1)
    planned = Carried(make_plan(alone, [replace(FACTS, splits_rows="always")], Options()), "Tiny", known=True)
    running = LiveFacts(replace(alone, sequence_parallel=False), FACTS, whole=True, draft=False)
    assert planned.plan_of(running) is planned.plan.layers[0]


def test_a_layer_whose_sum_the_model_takes_itself_is_rejected() -> None:
    assert "skip_final_all_reduce" in refusal(carried(), live(replace(FACTS, skips_reduction=True)))


def test_another_plan_with_what_the_layer_shows_is_an_error_that_names_both() -> None:
    """Whether rows are split is not known here before the layer says it; the plan must not hang on it."""
    planned = carried()
    (layer,) = planned.plan.layers
    other = replace(planned, plan=replace(planned.plan, layers=(replace(layer, weight_bytes=layer.weight_bytes + 1),)))
    said = refusal(other, live())
    assert said.startswith("model.layers.3.mlp.experts: with what the running layer shows, the plan would be")
    assert f"weight_bytes={layer.weight_bytes}," in said
    assert f"weight_bytes={layer.weight_bytes + 1}," in said


@pytest.mark.parametrize("name", [".layers.3.mlp.experts", "language_model.model.layers.3.moe.experts"])
def test_another_name_of_the_same_number_is_the_same_layer(name: str) -> None:
    planned = carried(FACTS, replace(FACTS, name="model.layers.2.mlp.experts"))
    assert planned.plan_of(live(replace(FACTS, name=name))) is planned.plan.layers[0]


def drafted(planned: Carried, name: str) -> LayerPlan:
    return planned.plan_of(live(replace(FACTS, name=name), draft=True))


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts", "draft_model.model.layers.0.mlp.experts", "layers.4.e"])
def test_a_draft_models_layers_are_its_own(name: str) -> None:
    """It may repeat the target's names, stand behind a prefix, or be numbered on from the target's four layers."""
    target, draft = (replace(FACTS, name="model.layers.0.mlp.experts", draft=d) for d in (False, True))
    planned = carried(target, draft, own_drafts=True)
    name = name.replace("layers.4.e", "model.layers.4.mlp.experts")
    assert drafted(planned, name) is planned.plan.layers[1]
    assert planned.plan_of(live(replace(FACTS, name=target.name))) is planned.plan.layers[0]


def test_a_draft_model_that_differs_runs_as_it_is_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM rewrites the configs of draft models, and their names; a guess stays a guess."""
    planned = carried(FACTS, replace(FACTS, name="model.layers.0.mlp.experts", draft=True), own_drafts=True)
    running = replace(FACTS, name="model.layers.0.mlp.experts", topk=1)
    with caplog.at_level("WARNING", logger="vllm_megamoe"):
        found = planned.plan_of(live(running, draft=True))
    assert found.facts == running
    assert "topk: 2 in the plan, 1 in the running layer" in caplog.text
