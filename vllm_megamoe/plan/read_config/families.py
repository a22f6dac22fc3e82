"""The rows of all families but DeepSeek's line, and the table of all of them (vLLM 0.32's model files).

Three kinds: routed experts alone; Qwen's line, whose shared experts stand behind a sigmoid gate; and the other families
with shared experts, hybrid ones among them.
"""

from vllm_megamoe.plan.read_config import activations as act
from vllm_megamoe.plan.read_config.activations import gelu_tanh, gpt_oss, silu
from vllm_megamoe.plan.read_config.deepseek_line import DEEPSEEK_LINE
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

_SPARSE = "model.layers.{layer}.block_sparse_moe.experts"
_OWN_WIDTH = ("intermediate_size",)

ROUTED_ALONE = (
    # Its config names the experts in a section of their own.
    Family(
        ("DbrxForCausalLM",),
        name="transformer.blocks.{layer}.ffn",
        section="ffn_config",
        where=every,
        num_layers=("n_layers",),
        intermediate=("ffn_hidden_size",),
        activation=silu,
    ),
    Family(("MixtralForCausalLM",), name=_SPARSE, where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("PhiMoEForCausalLM",), name=_SPARSE, where=every, intermediate=_OWN_WIDTH, activation=silu),
    # Its shared MLP, where there is one, is no part of vLLM's MoE layer.
    Family(
        ("GraniteMoeSharedForCausalLM", "GraniteMoeSWAForCausalLM", "GraniteMoeHybridForCausalLM"),
        name=_SPARSE,
        where=every,
        intermediate=_OWN_WIDTH,
        activation=silu,
    ),
    # The others hand its block no word about the rows.
    Family(
        ("GraniteMoeForCausalLM",),
        name=_SPARSE,
        where=every,
        intermediate=_OWN_WIDTH,
        activation=silu,
        splits_rows="always",
    ),
    Family(("MiniMaxM2ForCausalLM",), where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("OlmoeForCausalLM",), where=every, intermediate=_OWN_WIDTH, activation=silu),
    Family(("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), where=after_dense, splits_rows="always"),
    Family(
        ("GptOssForCausalLM",),
        where=every,
        intermediate=_OWN_WIDTH,
        activation=gpt_oss,
        has_bias=True,
        gate_up_interleaved=True,
        splits_rows="always",
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
    Family(("Qwen2MoeForCausalLM",), where=by_step, shared=_GATED),
    Family(("Qwen3MoeForCausalLM",), where=by_step, shared=_GATED, splits_rows="always"),
    Family(
        ("Qwen3NextForCausalLM",),
        where=by_step,
        shared=_GATED,
        drafts=DraftRule(name="mtp.layers.{layer}.mlp.experts", after_decoder=False),
        splits_rows="always",
    ),
    Family(
        ("Qwen3_5MoeForCausalLM", "Qwen4ExpForCausalLM"),
        where=every,
        shared=_GATED,
        drafts=DraftRule(name="mtp.layers.{layer}.mlp.experts", after_decoder=False),
        splits_rows="always",
    ),
    Family(("InternS1ProForCausalLM",), where=by_step, splits_rows="always"),
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
        splits_rows="always",
    ),
    Family(("Ernie4_5_MoeForCausalLM",), where=by_interval, shared=_SHARED_PLAIN),
    Family(
        ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), where=by_type, activation=act.exaone, shared=_SHARED_PLAIN
    ),
    Family(
        ("K2HorizonForCausalLM",),
        where=by_step,
        shared=_SHARED_PLAIN,
        scaling=("router_scaling_factor",),
        splits_rows="always",
    ),
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
        splits_rows="always",
        drafts=DraftRule(name="mtp.layers.{layer}.mixer.experts", after_decoder=False),
    ),
)

FAMILIES: tuple[Family, ...] = (*DEEPSEEK_LINE, *QWEN, *ROUTED_ALONE, *BAILING, *STEP, *OTHERS, *NEMOTRON)
