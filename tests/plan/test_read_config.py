"""Facts out of config.json alone, against numbers that the published configs are known for."""

import json
from pathlib import Path

import pytest

from vllm_megamoe.plan.read_config import read_moe_facts

# (experts, top-k, hidden, expert width) as the model cards state them.
PUBLISHED = {
    "Qwen--Qwen3-30B-A3B": (128, 8, 2048, 768),
    "Qwen--Qwen3-235B-A22B": (128, 8, 4096, 1536),
    "Qwen--Qwen3.5-397B-A17B": (512, 10, 4096, 1024),
    "deepseek-ai--DeepSeek-V3": (256, 8, 7168, 2048),
    "moonshotai--Kimi-K2-Instruct": (384, 8, 7168, 2048),
    "mistralai--Mixtral-8x7B-v0.1": (8, 2, 4096, 14336),
    "MiniMaxAI--MiniMax-M2.5": (256, 8, 3072, 1536),
    "openai--gpt-oss-20b": (32, 4, 2880, 2880),
    "zai-org--GLM-5": (256, 8, 6144, 2048),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_models(model: str, shared_dir: Path) -> None:
    config = json.loads((shared_dir / "model_configs" / f"{model}_config.json").read_text())
    facts = read_moe_facts(config)
    assert facts is not None
    assert (facts.num_experts, facts.topk, facts.hidden, facts.intermediate_hidden) == PUBLISHED[model]
    assert facts.has_bias == ("gpt-oss" in model)


def test_a_dense_model_has_none(shared_dir: Path) -> None:
    config = json.loads((shared_dir / "model_configs" / "Qwen--Qwen3-8B_config.json").read_text())
    assert read_moe_facts(config) is None
