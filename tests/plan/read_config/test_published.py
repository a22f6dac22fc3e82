"""The facts of published models: each file of ../shared/model_configs against numbers that are known apart from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools import write_models
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config.reader import architecture_of, read_layers

# MoE layers, draft layers, first MoE layer, experts, top-k, hidden, width, shared width: from the models' papers and
# cards, and the table of families in the survey of checkpoints.
PUBLISHED = {
    "MiniMaxAI--MiniMax-M2.5": (62, 0, 0, 256, 8, 3072, 1536, 0),
    "MiniMaxAI--MiniMax-M3": (57, 7, 3, 128, 4, 6144, 3072, 3072),
    "Qwen--Qwen3-235B-A22B": (94, 0, 0, 128, 8, 4096, 1536, 0),
    "Qwen--Qwen3-235B-A22B-FP8": (94, 0, 0, 128, 8, 4096, 1536, 0),
    "Qwen--Qwen3-30B-A3B": (48, 0, 0, 128, 8, 2048, 768, 0),
    "Qwen--Qwen3-30B-A3B-FP8": (48, 0, 0, 128, 8, 2048, 768, 0),
    "Qwen--Qwen3-VL-235B-A22B-Instruct": (94, 0, 0, 128, 8, 4096, 1536, 0),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": (48, 0, 0, 128, 8, 2048, 768, 0),
    "Qwen--Qwen3.5-35B-A3B": (40, 1, 0, 256, 8, 2048, 512, 512),
    "Qwen--Qwen3.5-397B-A17B": (60, 1, 0, 512, 10, 4096, 1024, 1024),
    "deepseek-ai--DeepSeek-R1": (58, 1, 3, 256, 8, 7168, 2048, 2048),
    "deepseek-ai--DeepSeek-V3": (58, 1, 3, 256, 8, 7168, 2048, 2048),
    "deepseek-ai--DeepSeek-V4-Flash": (43, 1, 0, 256, 6, 4096, 2048, 2048),
    "deepseek-ai--DeepSeek-V4-Pro": (61, 1, 0, 384, 6, 7168, 3072, 3072),
    "google--gemma-4-26B-A4B": (30, 0, 0, 128, 8, 2816, 704, 0),
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": (24, 0, 1, 128, 1, 5120, 8192, 8192),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (48, 0, 0, 16, 1, 5120, 8192, 8192),
    "mistralai--Mixtral-8x22B-v0.1": (56, 0, 0, 8, 2, 6144, 16384, 0),
    "mistralai--Mixtral-8x7B-v0.1": (32, 0, 0, 8, 2, 4096, 14336, 0),
    "moonshotai--Kimi-K2-Instruct": (60, 0, 1, 384, 8, 7168, 2048, 2048),
    "moonshotai--Kimi-K2.5": (60, 0, 1, 384, 8, 7168, 2048, 2048),
    "moonshotai--Kimi-K3": (92, 0, 1, 896, 16, 3584, 3072, 6144),
    "nvidia--DeepSeek-V3.1-NVFP4": (58, 1, 3, 256, 8, 7168, 2048, 2048),
    "nvidia--DeepSeek-V3.2-NVFP4": (58, 1, 3, 256, 8, 7168, 2048, 2048),
    "nvidia--DeepSeek-V4-Flash-NVFP4": (43, 1, 0, 256, 6, 4096, 2048, 2048),
    "nvidia--GLM-5-NVFP4": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "nvidia--GLM-5.1-NVFP4": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "nvidia--GLM-5.2-NVFP4": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "nvidia--Gemma-4-26B-A4B-NVFP4": (30, 0, 0, 128, 8, 2816, 704, 0),
    "nvidia--Kimi-K2.5-NVFP4": (60, 0, 1, 384, 8, 7168, 2048, 2048),
    "nvidia--Kimi-K2.6-NVFP4": (60, 0, 1, 384, 8, 7168, 2048, 2048),
    "nvidia--Kimi-K2.7-Code-NVFP4": (60, 0, 1, 384, 8, 7168, 2048, 2048),
    "nvidia--MiniMax-M2.5-NVFP4": (62, 0, 0, 256, 8, 3072, 1536, 0),
    "nvidia--MiniMax-M2.7-NVFP4": (62, 0, 0, 256, 8, 3072, 1536, 0),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (23, 0, 1, 128, 6, 2688, 1856, 3712),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": (23, 0, 1, 128, 6, 2688, 1856, 3712),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (40, 1, 1, 512, 22, 1024, 2688, 5376),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": (40, 1, 1, 512, 22, 1024, 2688, 5376),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (48, 1, 1, 512, 22, 2048, 5120, 10240),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": (48, 1, 1, 512, 22, 2048, 5120, 10240),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": (48, 1, 1, 512, 22, 2048, 5120, 10240),
    "nvidia--Qwen3-235B-A22B-NVFP4": (94, 0, 0, 128, 8, 4096, 1536, 0),
    "nvidia--Qwen3.5-122B-A10B-NVFP4": (48, 1, 0, 256, 8, 3072, 1024, 1024),
    "nvidia--Qwen3.5-397B-A17B-NVFP4": (60, 1, 0, 512, 10, 4096, 1024, 1024),
    "nvidia--Qwen3.6-35B-A3B-NVFP4": (40, 1, 0, 256, 8, 2048, 512, 512),
    "openai--gpt-oss-20b": (24, 0, 0, 32, 4, 2880, 2880, 0),
    "sgl-project--DeepSeek-V4-Flash-FP8": (43, 1, 0, 256, 6, 4096, 2048, 2048),
    "sgl-project--DeepSeek-V4-Pro-FP8": (61, 1, 0, 384, 6, 7168, 3072, 3072),
    "zai-org--GLM-5": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "zai-org--GLM-5-FP8": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "zai-org--GLM-5.1": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "zai-org--GLM-5.1-FP8": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "zai-org--GLM-5.3": (75, 1, 3, 256, 8, 6144, 2048, 2048),
    "zai-org--GLM-5.3-FP8": (75, 1, 3, 256, 8, 6144, 2048, 2048),
}

# No routed experts, although some of them are hybrids or halves of a family that has them.
DENSE = (
    "Qwen--Qwen3-0.6B",
    "Qwen--Qwen3-1.7B",
    "Qwen--Qwen3-32B",
    "Qwen--Qwen3-32B-FP8",
    "Qwen--Qwen3-32B-FP8-Static-PerTensor",
    "Qwen--Qwen3-8B",
    "Qwen--Qwen3-VL-2B-Instruct",
    "Qwen--Qwen3-VL-32B-Instruct",
    "Qwen--Qwen3-VL-32B-Thinking",
    "Qwen--Qwen3-VL-4B-Instruct",
    "Qwen--Qwen3-VL-8B-Instruct",
    "Qwen--Qwen3.5-27B",
    "XiaomiMiMo--MiMo-7B-Base",
    "meta-llama--Meta-Llama-3.1-405B",
    "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama--Meta-Llama-3.1-8B",
    "nvidia--Gemma-4-31B-IT-NVFP4",
    "nvidia--Llama-3.1-70B-Instruct-FP8",
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1",
    "nvidia--Nemotron-H-56B-Base-8K",
    "nvidia--Qwen3.6-27B-NVFP4",
)


def load(shared_dir: Path, model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((shared_dir / "model_configs" / f"{model}_config.json").read_text())
    return config


def shape(layers: tuple[MoeFacts, ...]) -> tuple[int, ...]:
    first, drafts = layers[0], [layer for layer in layers if layer.draft]
    sizes = {(m.num_experts, m.topk, m.hidden, m.intermediate_hidden, m.model_hidden) for m in layers}
    assert len(sizes) == 1
    shared = first.shared.intermediate_hidden if first.shared else 0
    own = (first.num_experts, first.topk, first.hidden, first.intermediate_hidden, shared)
    return (len(layers) - len(drafts), len(drafts), first.index, *own)


def test_every_model_of_the_page_has_its_row() -> None:
    assert set(write_models.listed_digests()) == {*PUBLISHED, *DENSE}


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_models(model: str, shared_dir: Path) -> None:
    layers = read_layers(load(shared_dir, model))
    assert shape(layers) == PUBLISHED[model]
    assert len({layer.name for layer in layers if not layer.draft}) == PUBLISHED[model][0]
    assert all(f".{layer.index}." in layer.name for layer in layers)


@pytest.mark.parametrize("model", DENSE)
def test_dense_models_have_no_layers(model: str, shared_dir: Path) -> None:
    assert read_layers(load(shared_dir, model)) == ()


@pytest.mark.parametrize("model", ["Qwen--Qwen3-32B-FP8-Static-PerTensor", "nvidia--GLM-5-NVFP4"])
def test_a_file_of_quantisation_alone_has_no_layers(model: str, shared_dir: Path) -> None:
    config = json.loads((shared_dir / "model_configs" / f"{model}_hf_quant_config.json").read_text())
    assert read_layers(config) == ()
    assert architecture_of(config) == ""
