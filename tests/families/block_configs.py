"""Published configs made small: sizes change, everything that says what a layer computes stays."""

import json
from pathlib import Path
from typing import Any

EXPERTS, TOPK, HIDDEN, WIDTH = 6, 3, 96, 64

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "MiniMax-M2": (
        "MiniMaxAI--MiniMax-M2.5_config.json",
        {
            "hidden_size": HIDDEN,
            "intermediate_size": WIDTH,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOPK,
            "num_hidden_layers": 2,
        },
    ),
    "DeepSeek-V4": (
        "deepseek-ai--DeepSeek-V4-Flash_config.json",
        {
            "hidden_size": HIDDEN,
            "moe_intermediate_size": WIDTH,
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": TOPK,
            "num_hidden_layers": 5,
        },
    ),
    "MiniMax-M3": (
        "MiniMaxAI--MiniMax-M3_config.json",
        {
            "hidden_size": HIDDEN,
            "intermediate_size": WIDTH,
            "moe_intermediate_size": WIDTH,
            "shared_intermediate_size": WIDTH,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOPK,
            "num_hidden_layers": 5,
            "moe_layer_freq": [0, 0, 0, 1, 1],
        },
    ),
    "Kimi-K3": (
        "moonshotai--Kimi-K3_config.json",
        {
            "hidden_size": 2 * HIDDEN,
            "routed_expert_hidden_size": HIDDEN,
            "moe_intermediate_size": WIDTH,
            "num_experts": EXPERTS,
            "num_experts_per_token": TOPK,
            "num_hidden_layers": 3,
        },
    ),
}

PUBLISHED_ARCHITECTURES: dict[str, list[str]] = {
    # The last is vLLM's own name of the language model, where it is another.
    "MiniMax-M2": ["MiniMaxM2ForCausalLM"],
    "DeepSeek-V4": ["DeepseekV4ForCausalLM"],
    "MiniMax-M3": ["MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"],
    "Kimi-K3": ["KimiK3ForConditionalGeneration", "KimiLinearForCausalLM"],
}

WRITTEN: dict[str, dict[str, Any]] = {
    # Not among the shared configs: keys and their meaning as in each model's configuration class and model file (vLLM
    # 0.32), limits of Step-3.5 as published.
    "Step-3.5": {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "share_expert_dim": WIDTH,
        "moe_num_experts": EXPERTS,
        "moe_top_k": TOPK,
        "num_hidden_layers": 45,
        "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)),
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "use_moe_router_bias": True,
        "norm_expert_weight": True,
        "swiglu_limits": [0.0] * 43 + [7.0, 7.0],
        "swiglu_limits_shared": [0.0] * 44 + [16.0],
    },
    "HY-V4": {
        "architectures": ["HYV4ForCausalLM"],
        "model_type": "hy_v4",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "expert_hidden_dim": WIDTH,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOPK,
        "num_shared_experts": 1,
        "num_hidden_layers": 3,
        "router_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
    },
    "GLM-5.3-Flash": {
        "architectures": ["Glm5NextForCausalLM"],
        "model_type": "glm5_next",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": TOPK,
        "n_shared_experts": 1,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
    },
    "EXAONE-MoE": {
        "architectures": ["ExaoneMoEForCausalLM"],
        "model_type": "exaone_moe",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOPK,
        "num_shared_experts": 1,
        "num_hidden_layers": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "routed_scaling_factor": 2.5,
        "swiglu_limits": [0.0, 0.0, 5.0],
    },
    "Bailing-V3": {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "model_type": "bailing_moe_v3",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "moe_shared_expert_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOPK,
        "num_shared_experts": 1,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "expert_swiglu_limit_list": [None, None, 7.0],
        "share_expert_swiglu_limit_list": [None, None, 7.0],
    },
}


def small_config(shared_dir: Path, family: str) -> dict[str, Any]:
    """The published config.json of a family in the shared folder, made small."""
    file, sizes = SMALL[family]
    config: dict[str, Any] = json.loads((shared_dir / "model_configs" / file).read_text())
    section = config.get("text_config", config)
    section.pop("quantization_config", None)
    absent = [key for key in sizes if key not in section]
    if absent:
        raise KeyError(f"{file} has no {absent}")
    section.update(sizes)
    return config


def architectures(family: str) -> list[str]:
    """Entries of `architectures` that a family's config.json may have."""
    return PUBLISHED_ARCHITECTURES[family] if family in SMALL else list(WRITTEN[family]["architectures"])
