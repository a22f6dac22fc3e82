"""DeepSeek's line and the models built on its code: Kimi, GLM, LongCat, Pangu, Hunyuan (vLLM 0.32's model files)."""

from vllm_megamoe.plan.read_config.activations import clamped, deepseek_v4, hidden_act, kimi
from vllm_megamoe.plan.read_config.family import NUM_SHARED, DraftRule, Family, SharedRule
from vllm_megamoe.plan.read_config.where import (
    after_dense,
    after_dense_only,
    by_type,
    by_type_else_all_but_first,
    every,
)

_SHARED = SharedRule(count=NUM_SHARED)

DEEPSEEK = (
    # deepseek_v2.py: the factor multiplies the output.
    Family(
        ("DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "MistralLarge3ForCausalLM"),
        where=after_dense,
        shared=_SHARED,
        scale_on_output=True,
        drafts=DraftRule(),
        splits_rows="always",
    ),
    # deepseek_v32: the factor goes into the router weights.
    Family(
        ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
        where=after_dense,
        shared=_SHARED,
        drafts=DraftRule(),
        splits_rows="always",
    ),
    Family(
        ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM"),
        name="model.layers.{layer}.ffn.experts",
        where=every,
        activation=deepseek_v4,
        shared=_SHARED,
        drafts=DraftRule(),
        # Its files for CUDA split them in one stage, the one for the CPU does not.
        splits_rows="unknown",
    ),
)

GLM = (
    Family(("Glm4MoeForCausalLM",), shared=_SHARED, scale_on_output=True, drafts=DraftRule()),
    Family(("Glm4MoeLiteForCausalLM",), where=after_dense, shared=_SHARED, scale_on_output=True, drafts=DraftRule()),
    Family(
        ("Glm5NextForCausalLM",),
        where=by_type,
        activation=clamped,
        shared=_SHARED,
        drafts=DraftRule(),
        splits_rows="always",
    ),
)

KIMI = (
    Family(
        ("KimiLinearForCausalLM",),
        name="model.layers.{layer}.block_sparse_moe.experts",
        where=after_dense,
        latent=("routed_expert_hidden_size",),
        activation=kimi,
        shared=_SHARED,
        drafts=DraftRule(),
        splits_rows="one_stage",
    ),
)

COUSINS = (
    # Its shared expert is no part of vLLM's MoE layer.
    Family(("Dots3NoteForCausalLM",), where=after_dense, splits_rows="always"),
    Family(("AXK1ForCausalLM",), where=after_dense, shared=_SHARED, scale_on_output=True, splits_rows="always"),
    Family(
        ("PanguUltraMoEForCausalLM", "PanguProMoEV2ForCausalLM"),
        where=after_dense_only,
        shared=_SHARED,
        scale_on_output=True,
        drafts=DraftRule(),
        splits_rows="always",
    ),
    # Zero experts are the router's affair: no weights, not counted among num_experts.
    Family(
        ("LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"),
        where=every,
        num_layers=("num_layers", "num_hidden_layers"),
        num_experts=("n_routed_experts",),
        topk=("moe_topk",),
        intermediate=("expert_ffn_hidden_size", "moe_intermediate_size"),
    ),
    Family(
        ("HYV3ForCausalLM",),
        intermediate=("expert_hidden_dim", "moe_intermediate_size"),
        shared=SharedRule(count=NUM_SHARED, module="shared_mlp"),
        scaling=("router_scaling_factor",),
        drafts=DraftRule(),
    ),
    # The clamp is for the routed experts alone.
    Family(
        ("HYV4ForCausalLM",),
        where=by_type_else_all_but_first,
        activation=clamped,
        shared=SharedRule(count=NUM_SHARED, activation=hidden_act),
        scaling=("router_scaling_factor", "routed_scaling_factor"),
    ),
)

DEEPSEEK_LINE = (*DEEPSEEK, *GLM, *KIMI, *COUSINS)
