"""Activations, shared experts and factors of the families that differ from the plain case."""

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat, Known, format_named
from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.read_config.reader import read_layers

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "intermediate_size": 160,
}
SILU = ActivationFacts("silu")


def layers(architecture: str, **keys: Any) -> tuple[MoeFacts, ...]:
    return read_layers({**SIZES, "architectures": [architecture], **keys})


def published(shared_dir: Path, model: str) -> MoeFacts:
    return read_layers(json.loads((shared_dir / "model_configs" / f"{model}_config.json").read_text()))[0]


def test_step35_has_limits_for_each_layer_and_others_for_shared_experts() -> None:
    limits = {"swiglu_limits": [0, 0, 7.0, 7.0], "swiglu_limits_shared": [0, None, 0.0, 16.0], "share_expert_dim": 80}
    read = {m.index: m for m in layers("Step3p5ForCausalLM", moe_top_k=2, **limits)}
    assert {i: m.activation for i, m in read.items()} == {
        1: SILU,
        2: ActivationFacts("swiglustep", 7.0),
        3: ActivationFacts("swiglustep", 7.0),
    }
    assert {i: m.shared.activation for i, m in read.items() if m.shared} == {
        1: SILU,
        2: SILU,
        3: ActivationFacts("swiglustep", 16.0),
    }


@pytest.mark.parametrize("limit", [None, 0, 0.0, float("inf")])
def test_no_limit_in_each_spelling(limit: float | None) -> None:
    assert layers("Glm5NextForCausalLM", swiglu_limit=limit)[0].activation == SILU


def test_minimax_m3_without_beta_means_one(shared_dir: Path) -> None:
    expected = ActivationFacts("swigluoai_uninterleave", limit=7.0, alpha=1.702, beta=1.0)
    facts = published(shared_dir, "MiniMaxAI--MiniMax-M3")
    assert facts.activation == expected
    assert facts.shared == SharedFacts(3072, 6144, expected)
    assert (facts.routed_scaling_factor, facts.scale_on_output) == (2.0, False)


def test_kimi_k3_routes_narrower_rows_than_the_model_has(shared_dir: Path) -> None:
    situ = ActivationFacts("situ", beta=4.0, linear_beta=25.0)
    facts = published(shared_dir, "moonshotai--Kimi-K3")
    assert (facts.hidden, facts.model_hidden, facts.activation) == (3584, 7168, situ)
    assert facts.shared == SharedFacts(6144, 7168, situ)


def test_gpt_oss_says_silu_and_is_not(shared_dir: Path) -> None:
    facts = published(shared_dir, "openai--gpt-oss-20b")
    assert facts.activation == ActivationFacts("swigluoai", limit=7.0, alpha=1.702, beta=1.0)
    assert facts.has_bias
    assert facts.gate_up_interleaved


def test_llama4_weighs_the_input(shared_dir: Path) -> None:
    facts = published(shared_dir, "meta-llama--Llama-4-Scout-17B-16E-Instruct")
    assert facts.router_weight_on_input
    assert facts.shared == SharedFacts(8192, 5120, SILU)


def test_qwen_gates_its_shared_expert(shared_dir: Path) -> None:
    assert published(shared_dir, "Qwen--Qwen3.5-35B-A3B").shared == SharedFacts(512, 2048, SILU, gated=True)


def test_hy_v4_clamps_routed_experts_only() -> None:
    facts = layers("HYV4ForCausalLM", n_shared_experts=1, swiglu_limit=10.0)[0]
    assert facts.activation == ActivationFacts("silu", 10.0)
    assert facts.shared == SharedFacts(48, 64, SILU)


@pytest.mark.parametrize(
    ("model", "factor", "on_output"),
    [
        ("deepseek-ai--DeepSeek-V3", 2.5, True),
        ("moonshotai--Kimi-K2-Instruct", 2.827, True),
        ("nvidia--DeepSeek-V3.2-NVFP4", 2.5, False),
        ("zai-org--GLM-5", 2.5, False),
        ("deepseek-ai--DeepSeek-V4-Flash", 1.5, False),
        ("moonshotai--Kimi-K3", 1.0, False),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", 5.0, True),
        ("Qwen--Qwen3-30B-A3B", 1.0, False),
    ],
)
def test_where_the_factor_goes(model: str, factor: float, on_output: bool, shared_dir: Path) -> None:
    facts = published(shared_dir, model)
    assert (facts.routed_scaling_factor, facts.scale_on_output) == (factor, on_output)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("google--gemma-4-26B-A4B", "gelu_tanh"),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "relu2_no_mul"),
    ],
)
def test_what_the_operator_lacks_keeps_its_name(model: str, name: str, shared_dir: Path) -> None:
    assert published(shared_dir, model).activation.name == name


def test_formats_are_asked_by_vllms_names() -> None:
    asked: list[str] = []

    def format_of(prefix: str, experts: int = 0, gated: bool = True) -> ExpertsFormat:
        asked.append(prefix)
        return format_named("fp8-block") if prefix.endswith(".experts") else BF16

    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {**SIZES, "n_shared_experts": 2}}
    facts = read_layers(config, format_of)[0]
    assert asked[:2] == [
        "language_model.model.layers.0.mlp.experts",
        "language_model.model.layers.0.mlp.shared_experts",
    ]
    assert facts.experts_format == Known("fp8-block")
    assert facts.shared == SharedFacts(96, 64, SILU, experts_format=BF16)
