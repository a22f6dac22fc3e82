"""DeepSeek's line and the models built on its code: Kimi, GLM, LongCat, Pangu (vLLM 0.32's model files).

Families whose routed experts stand alone (vLLM 0.32's model files of the same names).

Qwen's line: shared experts stand behind a sigmoid gate (vLLM 0.32's qwen2_moe, qwen3_moe, qwen3_next, qwen3_5,
qwen4_exp).

Other families with shared experts, and the hybrid ones (vLLM 0.32's model files of the same names).

The table of families, and the multimodal models that hold one of them.
"""

from vllm_megamoe.plan.read_config import activations as act
from vllm_megamoe.plan.read_config.activations import clamped, deepseek_v4, gelu_tanh, gpt_oss, hidden_act, kimi, silu
from vllm_megamoe.plan.read_config.family import NUM_SHARED, DraftRule, Family, SharedRule
from vllm_megamoe.plan.read_config.where import (
    after_dense,
    after_dense_only,
    after_first,
    after_num_dense,
    by_enumeration,
    by_interleave,
    by_interval,
    by_pattern,
    by_period,
    by_step,
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
    ),
    # deepseek_v32: the factor goes into the router weights.
    Family(
        ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
        where=after_dense,
        shared=_SHARED,
        drafts=DraftRule(),
    ),
    Family(
        ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM"),
        name="model.layers.{layer}.ffn.experts",
        where=every,
        activation=deepseek_v4,
        shared=_SHARED,
        drafts=DraftRule(),
    ),
)

GLM = (
    Family(("Glm4MoeForCausalLM",), shared=_SHARED, scale_on_output=True, drafts=DraftRule()),
    Family(("Glm4MoeLiteForCausalLM",), where=after_dense, shared=_SHARED, scale_on_output=True, drafts=DraftRule()),
    Family(("Glm5NextForCausalLM",), where=by_type, activation=clamped, shared=_SHARED, drafts=DraftRule()),
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
    ),
)

COUSINS = (
    # Its shared expert is no part of vLLM's MoE layer.
    Family(("Dots3NoteForCausalLM",), where=after_dense),
    Family(("AXK1ForCausalLM",), where=after_dense, shared=_SHARED, scale_on_output=True),
    Family(
        ("PanguUltraMoEForCausalLM", "PanguProMoEV2ForCausalLM"),
        where=after_dense_only,
        shared=_SHARED,
        scale_on_output=True,
        drafts=DraftRule(),
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


_SPARSE = "model.layers.{layer}.block_sparse_moe.experts"
_OWN_WIDTH = ("intermediate_size",)

ROUTED_ALONE = (
    Family(("MixtralForCausalLM",), name=_SPARSE, where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("PhiMoEForCausalLM",), name=_SPARSE, where=every, intermediate=_OWN_WIDTH, activation=silu),
    # Its shared MLP, where there is one, is no part of vLLM's MoE layer.
    Family(
        (
            "GraniteMoeForCausalLM",
            "GraniteMoeSharedForCausalLM",
            "GraniteMoeSWAForCausalLM",
            "GraniteMoeHybridForCausalLM",
        ),
        name=_SPARSE,
        where=every,
        intermediate=_OWN_WIDTH,
        activation=silu,
    ),
    Family(("MiniMaxM2ForCausalLM",), where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("OlmoeForCausalLM",), where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), where=after_dense),
    Family(
        ("GptOssForCausalLM",),
        where=every,
        intermediate=_OWN_WIDTH,
        activation=gpt_oss,
        has_bias=True,
        gate_up_interleaved=True,
    ),
    Family(
        ("Gemma4ForCausalLM",),
        name="model.layers.{layer}.experts",
        where=every,
        intermediate=("moe_intermediate_size", "expert_intermediate_size"),
        activation=gelu_tanh,
    ),
    Family(
        ("Lfm2MoeForCausalLM",),
        name="model.layers.{layer}.feed_forward.experts",
        where=after_num_dense,
        activation=silu,
    ),
    Family(
        ("JambaForCausalLM",),
        name="model.layers.{layer}.feed_forward.experts",
        where=by_period,
        intermediate=_OWN_WIDTH,
        activation=silu,
    ),
)


_GATED = SharedRule(width=("shared_expert_intermediate_size",), module="shared_expert", gated=True)

QWEN = (
    Family(("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"), where=by_step, shared=_GATED),
    Family(
        ("Qwen3NextForCausalLM",),
        where=by_step,
        shared=_GATED,
        drafts=DraftRule(name="mtp.layers.{layer}.mlp.experts", after_decoder=False),
    ),
    Family(
        ("Qwen3_5MoeForCausalLM", "Qwen4ExpForCausalLM"),
        where=every,
        shared=_GATED,
        drafts=DraftRule(name="mtp.layers.{layer}.mlp.experts", after_decoder=False),
    ),
    Family(("InternS1ProForCausalLM",), where=by_step),
)


_SHARED_PLAIN = SharedRule(count=NUM_SHARED)
_BAILING = SharedRule(count=NUM_SHARED, width=("moe_shared_expert_intermediate_size",))

BAILING = (
    Family(("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"), shared=_BAILING),
    Family(("BailingMoeV2_5ForCausalLM",), shared=_BAILING, scale_on_output=True, drafts=DraftRule()),
    Family(
        ("BailingMoeV3ForCausalLM",),
        activation=act.bailing_v3,
        shared=SharedRule(NUM_SHARED, ("moe_shared_expert_intermediate_size",), activation=act.bailing_v3_shared),
        drafts=DraftRule(),
    ),
)

STEP = (
    # Its shared expert is no part of vLLM's MoE layer.
    Family(("Step3TextForCausalLM",), name="model.layers.{layer}.moe.experts", where=by_enumeration, scaling=()),
    Family(
        ("Step3p5ForCausalLM",),
        name="model.layers.{layer}.moe.experts",
        where=by_enumeration,
        activation=act.step3p5,
        shared=SharedRule(width=("share_expert_dim",), module="share_expert", activation=act.step3p5_shared),
        scaling=("moe_router_scaling_factor",),
    ),
)

OTHERS = (
    Family(
        ("MiniMaxM3SparseForCausalLM", "MiniMaxM3ForCausalLM"),
        name="model.layers.{layer}.block_sparse_moe.experts",
        where=after_dense,
        intermediate=("intermediate_size",),
        activation=act.minimax_m3,
        shared=_SHARED_PLAIN,
        default_scaling=2.0,
        drafts=DraftRule(
            count=("num_mtp_modules",), name="mtp.layers.{layer}.block_sparse_moe.experts", after_decoder=False
        ),
    ),
    Family(
        ("Llama4ForCausalLM",),
        name="model.layers.{layer}.feed_forward.experts",
        where=by_interleave,
        intermediate=("intermediate_size",),
        shared=SharedRule(width=("intermediate_size",), module="shared_expert"),
        router_weight_on_input=True,
    ),
    Family(("Ernie4_5_MoeForCausalLM",), where=by_interval, shared=_SHARED_PLAIN),
    Family(
        ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), where=by_type, activation=act.exaone, shared=_SHARED_PLAIN
    ),
    Family(("K2HorizonForCausalLM",), where=by_step, shared=_SHARED_PLAIN, scaling=("router_scaling_factor",)),
    Family(("AfmoeForCausalLM",), where=after_num_dense, shared=_SHARED_PLAIN, scaling=("route_scale",)),
    Family(("Param2MoEForCausalLM",), where=after_first, shared=_SHARED_PLAIN),
    Family(("SarvamMLAForCausalLM",), where=after_first, shared=_BAILING, default_scaling=2.5),
    Family(("SarvamMoEForCausalLM",), where=after_dense_only, shared=_BAILING),
    Family(
        ("LagunaForCausalLM",),
        where=by_type_else_all_but_first,
        shared=SharedRule(width=("shared_expert_intermediate_size",), module="shared_expert"),
        scaling=("moe_routed_scaling_factor",),
        scale_on_output=True,
    ),
    Family(("Cohere2MoeForCausalLM",), where=by_type, intermediate=("intermediate_size",), shared=_SHARED_PLAIN),
    Family(
        ("AriaTextForCausalLM",),
        where=every,
        num_experts=("moe_num_experts",),
        intermediate=("intermediate_size",),
        shared=_SHARED_PLAIN,
    ),
)

NEMOTRON = (
    Family(
        ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"),
        name="model.layers.{layer}.mixer.experts",
        where=by_pattern,
        latent=("moe_latent_size",),
        activation=act.relu2_without_gate,
        shared=SharedRule(count=NUM_SHARED, width=("moe_shared_expert_intermediate_size",)),
        scale_on_output=True,
        drafts=DraftRule(name="mtp.layers.{layer}.mixer.experts", after_decoder=False),
    ),
)

OTHERS_WITH_SHARED = (*BAILING, *STEP, *OTHERS, *NEMOTRON)


FAMILIES: tuple[Family, ...] = (*DEEPSEEK_LINE, *QWEN, *ROUTED_ALONE, *OTHERS_WITH_SHARED)

BY_ARCHITECTURE: dict[str, Family] = {name: family for family in FAMILIES for name in family.architectures}

WRAPPERS: dict[str, str] = {
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen4ExpForConditionalGeneration": "Qwen4ExpForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiK3ForConditionalGeneration": "KimiLinearForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV2ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "Glm5NextForConditionalGeneration": "Glm5NextForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3SparseForCausalLM",
    "InternS1ProForConditionalGeneration": "InternS1ProForCausalLM",
    "BailingMoeV3VLForConditionalGeneration": "BailingMoeV3ForCausalLM",
    "Step3VLForConditionalGeneration": "Step3TextForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p5ForCausalLM",
    "AriaForConditionalGeneration": "AriaTextForCausalLM",
}
"""The language model inside a multimodal one, which vLLM builds under `language_model.`."""
