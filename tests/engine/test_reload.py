"""Weights loaded again into a running engine: the same tokens and log-probabilities as a fresh start with them.

An engine with weights A is given B by vLLM's reload, A by a trainer's `load_weights`, B once more, twice; each time its
answers equal those of an engine that was started with these weights, to the last bit.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine.engines import EAGER, MEGAMOE, Engines, Prompts
from engine.reloading import addresses, after, load, load_from_one_buffer, refused, reload, with_rotated_experts
from engine.steps import layers

pytestmark = pytest.mark.engine

OPTIONS: dict[str, dict[str, Any]] = {
    "a16w16": {},
    "a8w8-int": {"additional_config": {"megamoe": {"use_case": "a8w8-int", "requant": "allow"}}},
}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shared checkpoint's model with other weights."""
    from vllm_megamoe.demo.checkpoint import make_checkpoint

    return str(make_checkpoint(tmp_path_factory.mktemp("other") / "qwen3-moe", seed=1))


@pytest.fixture(scope="module", params=OPTIONS)
def answers(
    request: pytest.FixtureRequest, engines: Engines, checkpoint: str, other: str, prompts: Prompts
) -> dict[str, Any]:
    llm = {**MEGAMOE, **EAGER, "enable_prefix_caching": False, **OPTIONS[request.param]}
    ask = partial(after, prompts=prompts[:4])
    fresh = {name: engines.run({"model": name, **llm}, [ask])[0][0] for name in (checkpoint, other)}
    steps = {
        "addresses before": addresses,
        "reload": partial(ask, what=partial(reload, folder=other)),
        "load": partial(ask, what=partial(load, folder=checkpoint)),
        "half an expert": partial(refused, what=partial(load, folder=other, only="layers.1.mlp.experts.3.up_proj")),
        "the whole expert": partial(ask, what=partial(load, folder=checkpoint, only="layers.1.mlp.experts.3.")),
        "half a linear": partial(refused, what=partial(load, folder=other, only="layers.0.self_attn.k_proj")),
        "a bucket": partial(ask, what=partial(load_from_one_buffer, folder=other)),
        "twice": partial(ask, what=partial(load, folder=other)),
        "reload twice": partial(ask, what=partial(reload, folder=other)),
        "addresses after": addresses,
    }
    found = engines.run({"model": checkpoint, **llm}, [partial(_all, steps=steps)])[0][0]
    return {"A": fresh[checkpoint], "B": fresh[other], **found}


def _all(llm: Any, steps: dict[str, Any]) -> dict[str, Any]:
    return {name: step(llm) for name, step in steps.items()}


def test_loading_again_gives_what_a_fresh_start_gives(answers: dict[str, Any]) -> None:
    assert answers["A"] != answers["B"]
    expected = {"reload": "B", "load": "A", "the whole expert": "A", "a bucket": "B", "twice": "B", "reload twice": "B"}
    for step, weights in expected.items():
        assert answers[step] == answers[weights], step


def test_operands_stay_where_they_are(answers: dict[str, Any]) -> None:
    assert answers["addresses after"] == answers["addresses before"]


def test_weights_loaded_in_part_are_named_before_they_are_used(answers: dict[str, Any]) -> None:
    words = "model.layers.1.mlp.experts: 1 experts were loaded again in part: model.layers.1.mlp.experts.3.gate_proj"
    assert words in answers["half an expert"]
    assert "model.layers.0.self_attn.qkv_proj: loaded again in part" in answers["half a linear"]


FIXTURES = {
    "qwen3_moe__msmodelslim__w4a8_dynamic": "a8w4-int",
    "qwen3_moe__llmcompressor__MXFP4": "a8w4-fp",
    "deepseek_v3__msmodelslim__w4a8_mxfp": "a8w4-fp",
}
"""Quantised linears that are dequantised at load, parts that are optional, fused shared experts, latent attention."""


@pytest.mark.full
@pytest.mark.parametrize("name", FIXTURES)
def test_a_quantised_checkpoint_is_loaded_again(
    name: str, engines: Engines, shared_dir: Path, tmp_path: Path, prompts: Prompts
) -> None:
    """By both ways, with the experts' numbers rotated by one: other weights, all legal."""
    first = str(shared_dir / "fixtures" / f"{name}__s0")
    second = str(with_rotated_experts(Path(first), tmp_path / "rotated"))
    llm = {**MEGAMOE, **EAGER, "enable_prefix_caching": False, "max_model_len": 128}
    ask = partial(after, prompts=[prompt[:20] for prompt in prompts[:4]])
    fresh = [engines.run({"model": folder, **llm}, [ask])[0][0] for folder in (first, second)]
    steps = [ask, partial(ask, what=partial(reload, folder=second)), partial(ask, what=partial(load, folder=first))]
    found = engines.run({"model": first, **llm}, [layers, *steps])[0]
    assert {layer["use_case"] for layer in found[0]} == {FIXTURES[name]}
    assert fresh[0] != fresh[1]
    assert found[1:] == [fresh[0], fresh[1], fresh[0]]
