"""What a product takes of a whole plan and what it rejects, each by a word of the rule."""

from dataclasses import replace
from typing import Any

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import plan_layer

QWEN3_30B = MoeFacts("model.layers.0.mlp.experts", 128, 8, 2048, 768, index=0)
DEEPSEEK_V3 = MoeFacts("model.layers.3.mlp.experts", 256, 8, 7168, 2048, index=3)
EP16 = EngineFacts(dtype="bfloat16", tensor_parallel=16, expert_parallel=True, max_num_batched_tokens=4096)
GIB = 1 << 30


def plan(layer: MoeFacts, engine: EngineFacts = EP16, **options: Any) -> LayerPlan:
    return plan_layer(engine, layer, Options(**options))


OAI = ActivationFacts("swigluoai_uninterleave", limit=7.0, alpha=1.702, beta=1.0)
MIXTRAL = MoeFacts("m", 8, 2, 4096, 14336)
ON_950: dict[str, Any] = {"profile": "950@9.2", "requant": "allow"}
EP4 = replace(EP16, tensor_parallel=4)

REJECTED: dict[str, tuple[MoeFacts, EngineFacts, dict[str, Any], str]] = {
    "one rank on a product": (DEEPSEEK_V3, EngineFacts("bfloat16"), {"profile": "a3@9.2"}, r"ep_world_size=1"),
    "48 ranks on A3": (
        replace(DEEPSEEK_V3, num_experts=240),
        replace(EP16, tensor_parallel=48),
        {"profile": "a3@9.2"},
        r"ep_world_size=48.*2, 4, 8, 16, 32, 64",
    ),
    "too wide, exact split": (MIXTRAL, EP4, {"profile": "a3@9.2"}, r"split into 7 of 2048.*56 experts and topk 14"),
    "too wide on 950": (MIXTRAL, EP4, ON_950, r"split into 4 of 3584.*32 experts and topk 8"),
    "too wide, padded split": (
        MoeFacts("ernie", 64, 8, 8192, 3584),
        EP4,
        {"profile": "a3@9.2"},
        r"split into 2 of 2048.*128 experts and topk 16",
    ),
    "padding beyond its limit": (
        replace(QWEN3_30B, intermediate_hidden=512),
        EP16,
        {"profile": "a3@9.1"},
        r"512 -> 1024 \(\+100% weights and FLOPs\).*at most 35%.*max_padding_overhead to 1\.00",
    ),
    "BF16 on 950": (DEEPSEEK_V3, EP16, {"profile": "950@9.2"}, r"a8w8-fp from BF16 experts is lossy.*no use case that"),
    "a use case of another product": (DEEPSEEK_V3, EP16, {"profile": "950@9.2", "use_case": "a16w16"}, r"on 950@9\.2"),
    "another activation of 9.1": (
        replace(DEEPSEEK_V3, activation=OAI),
        EP16,
        {"profile": "a3@9.1"},
        r"activation='?swigluoai",
    ),
    "step on URMA": (
        replace(DEEPSEEK_V3, activation=ActivationFacts("swiglustep", limit=7.0)),
        EP16,
        {**ON_950, "topology": "urma"},
        r"activation='?swiglustep",
    ),
    "a clamp that 950 of 9.1 ignores": (
        replace(DEEPSEEK_V3, activation=ActivationFacts(limit=10.0)),
        EP16,
        {"profile": "950@9.1", "requant": "allow"},
        r"activation_clamp=10.*would not reject",
    ),
    "quantised rows on A3": (
        DEEPSEEK_V3, EP16, {"profile": "a3@9.2", "combine_quant": "e4m3"},
        r"combine_quant_mode=4",
    ),
    "weights forwarded on A3": (
        DEEPSEEK_V3, EP16, {"profile": "a3@9.2", "topk_weights_type": 1},
        r"topk_weights_type=1",
    ),
    "merging on A3": (
        DEEPSEEK_V3, EP16, {"profile": "a3@9.2", "combine_comm_mode": 1},
        r"combine_comm_mode=1",
    ),
    "more than can come on 950": (
        DEEPSEEK_V3, EP16, {**ON_950, "max_recv_token_num": 32769},
        r"max_recv_token_num=32769",
    ),
    "a budget that holds no row": (
        DEEPSEEK_V3,
        EP16,
        {"profile": "a3@9.2", "workspace_budget_gib": 0.001},
        r"workspace_budget_gib = 0\.001; expected at least 0\.0",
    ),
    "urma elsewhere": (DEEPSEEK_V3, EP16, {"profile": "a3@9.2", "topology": "urma"}, r"only Ascend 950"),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_rejected(case: str) -> None:
    layer, engine, options, message = REJECTED[case]
    with pytest.raises(ConfigError, match=message):
        plan(layer, engine, **options)


ACCEPTED: dict[str, tuple[MoeFacts, EngineFacts, dict[str, Any]]] = {
    "64 ranks on A3": (DEEPSEEK_V3, replace(EP16, tensor_parallel=64), {"profile": "a3@9.2"}),
    "padding with consent": (
        replace(QWEN3_30B, intermediate_hidden=512),
        EP16,
        {"profile": "a3@9.1", "max_padding_overhead": 1.0},
    ),
    "512 is legal in 9.2": (replace(QWEN3_30B, intermediate_hidden=512), EP16, {"profile": "a3@9.2"}),
    "oai in 9.2": (replace(DEEPSEEK_V3, activation=OAI), EP16, {"profile": "a3@9.2"}),
    "quantised rows on 950": (DEEPSEEK_V3, EP16, {**ON_950, "combine_quant": "e4m3"}),
    "weights forwarded on 950": (DEEPSEEK_V3, EP16, {**ON_950, "topk_weights_type": 1}),
    "merging on 950": (DEEPSEEK_V3, EP16, {**ON_950, "combine_comm_mode": 1}),
    "as many as can come on 950": (DEEPSEEK_V3, EP16, {**ON_950, "max_recv_token_num": 32768}),
    "a clamp on 950": (replace(DEEPSEEK_V3, activation=ActivationFacts(limit=10.0)), EP16, ON_950),
    "fp4": (DEEPSEEK_V3, EP16, {**ON_950, "use_case": "a4w4-fp"}),
    "950 of 9.1": (DEEPSEEK_V3, EP16, {"profile": "950@9.1", "requant": "allow"}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case: str) -> None:
    layer, engine, options = ACCEPTED[case]
    plan(layer, engine, **options)
