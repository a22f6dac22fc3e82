"""A model's parameters, counted from its config, against transformers' own models and against published numbers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.plan.model import Speculation, read_model
from vllm_megamoe.plan.whole.model import WholeModel, read_whole

QUANTISATION = ("quantization_config", "compression_config", "auto_map")


def published(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Published configs of models with experts, without what a tool says of their weights."""
    for path in sorted((folder / "model_configs").glob("*_config.json")):
        if "quant" in path.name:
            continue
        config = json.loads(path.read_text())
        parts = [config, *(part for part in config.values() if isinstance(part, dict))]
        if any("expert" in key for part in parts for key in part):
            for part in parts:
                for key in QUANTISATION:
                    part.pop(key, None)
            yield path.name.removesuffix("_config.json"), config


def counted(config: dict[str, Any], method: str = "") -> WholeModel:
    facts = read_model(config, {}, speculative=Speculation(method) if method else None)
    return read_whole(config, facts.layers)


def by_transformers(config: dict[str, Any]) -> tuple[int, int] | None:
    """Elements of the language model and of everything that sees, in the model that transformers builds; None where
    it has no class."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config["model_type"] not in CONFIG_MAPPING:
        return None
    made = CONFIG_MAPPING[config["model_type"]].from_dict(config)
    with torch.device("meta"):
        try:
            model = AutoModelForMultimodalLM.from_config(made)
        except ValueError:
            model = AutoModelForCausalLM.from_config(made)
    sees = ("visual", "vision", "multi_modal", "projector")
    text = seen = 0
    for name, parameter in model.named_parameters():
        if any(word in name for word in sees):
            seen += parameter.numel()
        else:
            text += parameter.numel()
    return text, seen


@pytest.mark.full
def test_every_published_model_has_as_many_parameters_as_transformers_builds(shared_dir: Path) -> None:
    compared = []
    for name, config in published(shared_dir):
        expected = by_transformers(json.loads(json.dumps(config)))
        if expected is None:
            continue
        whole = counted(config)
        text, seen = expected
        vision = whole.parts.get("vision", 0)
        if whole.parts.get("routed experts"):
            assert whole.parameters - vision == text, name
            compared.append(name)
        if vision:
            # Patches, positions and norms are left out of it: below a quarter, and the gap is named.
            assert 0.75 * seen < vision <= seen, name
            assert "the vision tower is about right" in whole.gaps
    assert len(compared) >= 40


SMALL: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 96, "head_dim": 48, "num_key_value_heads": 2},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 112},
    "qwen3_next": {"num_experts": 8, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 112},
    "mixtral": {"num_local_experts": 8, "num_key_value_heads": 2},
    "olmoe": {"num_experts": 8, "num_key_value_heads": 4},
    "glm4_moe": {"n_routed_experts": 8, "moe_intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 48},
    "glm4_moe_lite": {"n_routed_experts": 8, "moe_intermediate_size": 96},
    "deepseek_v3": {"n_routed_experts": 8, "moe_intermediate_size": 96, "first_k_dense_replace": 1},
    "gpt_oss": {"num_local_experts": 8, "num_key_value_heads": 2, "head_dim": 48},
    "minimax_m2": {"num_local_experts": 8, "num_key_value_heads": 2, "head_dim": 48},
}
"""Fields beside 256 hidden, 4 heads, 4 layers; sizes are distinct, so that none can be taken for another."""


@pytest.mark.full
@pytest.mark.parametrize("model_type", SMALL)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_small_models_of_each_family(model_type: str, tied: bool) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 1000}
    made = CONFIG_MAPPING[model_type](
        **sizes, intermediate_size=320, num_experts_per_tok=2, tie_word_embeddings=tied, **SMALL[model_type]
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    config = {**made.to_dict(), "architectures": [name], "model_type": model_type}
    if model_type == "glm4_moe_lite":
        config["first_k_dense_replace"] = 1  # as the published file says it; the class keeps a list instead
    expected = by_transformers(json.loads(json.dumps(config)))
    assert expected is not None
    assert counted(config).parameters == expected[0]


PUBLISHED = {
    # name -> (billions as published, how far a rounded figure may be off); sources: the models' own cards
    "deepseek-ai--DeepSeek-V3": (671, 0.5),
    "Qwen--Qwen3-235B-A22B": (235, 0.5),
    "Qwen--Qwen3-30B-A3B": (30.5, 0.05),
    "moonshotai--Kimi-K2-Instruct": (1_000, 50),  # "1T"; 1.03 in the report
    "Qwen--Qwen3.5-397B-A17B": (397, 0.5),
    "deepseek-ai--DeepSeek-V4-Flash": (284, 0.5),
    "zai-org--GLM-5": (744, 0.5),
    "mistralai--Mixtral-8x7B-v0.1": (46.7, 0.05),
    "mistralai--Mixtral-8x22B-v0.1": (141, 0.5),
    # No class of transformers counts these two: the gap is said.
    "moonshotai--Kimi-K3": (2_800, 50),
    "MiniMaxAI--MiniMax-M3": (428, 2.5),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_the_published_ones(shared_dir: Path, name: str) -> None:
    whole = counted(json.loads((shared_dir / "model_configs" / f"{name}_config.json").read_text()))
    billions, off = PUBLISHED[name]
    assert abs(whole.parameters / 1e9 - billions) <= off, whole.parameters


def test_the_draft_layer_of_deepseek_v3(shared_dir: Path) -> None:
    """11.5 B of its own, without table and head (DeepSeek-V3's README_WEIGHTS.md); 684.5 B in the files, with both."""
    config = json.loads((shared_dir / "model_configs" / "deepseek-ai--DeepSeek-V3_config.json").read_text())
    main, with_draft = counted(config), counted(config, "mtp")
    draft = with_draft.parameters - main.parameters
    assert draft / 1e9 == pytest.approx(11.5, abs=0.15)
    table = config["vocab_size"] * config["hidden_size"]
    assert (with_draft.parameters + 2 * table) / 1e9 == pytest.approx(684.5, abs=0.05)


def test_what_is_not_counted_is_said() -> None:
    config = {"architectures": ["SomethingNewForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2}
    config |= {"hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 10}
    assert any("not counted" in gap for gap in counted(config).gaps)
    assert any("about right" in gap for gap in counted({**config, "num_attention_heads": 4}).gaps)
    assert counted({**config, "num_attention_heads": 4, "architectures": ["Qwen3MoeForCausalLM"]}).gaps == ()
