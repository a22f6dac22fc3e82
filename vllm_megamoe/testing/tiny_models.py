"""Tiny models with the real class and config structure of each family, for tests on a CPU.

Sizes are never square and differ wherever the real ones may: hidden 1024, expert width 384, eight experts. Keys are
those of the family's own config class; what a family scales, shares or gates is as in its published config, made small.
"""

from dataclasses import dataclass
from typing import Any

VOCABULARY = 260
HIDDEN = 1024
WIDTH = 384

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": 259,
}

LATENT_ATTENTION: dict[str, Any] = {
    # vLLM's attention kernel for CPUs takes these sizes of the cache row only, which are DeepSeek's own.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "num_key_value_heads": 8,
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """One family of models.

    Attributes:
        title: its name in documents.
        model_type: as config.json says it.
        architecture: the class that vLLM builds.
        settings: what its config has besides COMMON.
        shared: whether shared experts are added to the routed ones.
        gated: whether a sigmoid gate per token multiplies the shared expert.
        scaled: whether the routed sum is multiplied by a factor other than 1.
    """

    title: str
    model_type: str
    architecture: str
    settings: dict[str, Any]
    shared: bool = False
    gated: bool = False
    scaled: bool = False


TINY_MODELS: dict[str, TinyModel] = {
    "qwen3_moe": TinyModel(
        "Qwen3-MoE",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {
            "num_hidden_layers": 2,
            "head_dim": 128,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": WIDTH,
            "norm_topk_prob": True,
        },
    ),
    "qwen2_moe": TinyModel(
        "Qwen2-MoE",
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": WIDTH,
            "shared_expert_intermediate_size": 640,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
        },
        shared=True,
        gated=True,
    ),
    "deepseek_v2": TinyModel(
        "DeepSeek-V2",
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        {
            **LATENT_ATTENTION,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "intermediate_size": 512,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 4.0,
            "norm_topk_prob": False,
            "moe_intermediate_size": WIDTH,
        },
        shared=True,
        scaled=True,
    ),
    "deepseek_v3": TinyModel(
        "DeepSeek-V3",
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {
            **LATENT_ATTENTION,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "intermediate_size": 512,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "moe_intermediate_size": WIDTH,
        },
        shared=True,
        scaled=True,
    ),
    "glm4_moe": TinyModel(
        "GLM-4.5",
        "glm4_moe",
        "Glm4MoeForCausalLM",
        {
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "intermediate_size": 512,
            "head_dim": 128,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "attention_bias": True,
            "moe_intermediate_size": WIDTH,
        },
        shared=True,
        scaled=True,
    ),
    "mixtral": TinyModel(
        "Mixtral",
        "mixtral",
        "MixtralForCausalLM",
        {"num_hidden_layers": 2, "intermediate_size": WIDTH, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "ernie4_5_moe": TinyModel(
        "ERNIE-4.5",
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        {
            "num_hidden_layers": 3,
            "intermediate_size": 512,
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_intermediate_size": WIDTH,
        },
        shared=True,
    ),
    "olmoe": TinyModel(
        "OLMoE",
        "olmoe",
        "OlmoeForCausalLM",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": 8,
            "intermediate_size": WIDTH,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
        },
    ),
    "glm4_moe_lite": TinyModel(
        "GLM-4.7-Flash",
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        {
            **LATENT_ATTENTION,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "intermediate_size": 512,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "norm_topk_prob": True,
            "moe_intermediate_size": WIDTH,
        },
        shared=True,
        scaled=True,
    ),
    "exaone_moe": TinyModel(
        "EXAONE-MoE without limits",
        "exaone_moe",
        "ExaoneMoeForCausalLM",
        {
            "num_hidden_layers": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "intermediate_size": 512,
            "head_dim": 128,
            "num_experts": 8,
            "num_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "moe_intermediate_size": WIDTH,
        },
        shared=True,
        scaled=True,
    ),
}
