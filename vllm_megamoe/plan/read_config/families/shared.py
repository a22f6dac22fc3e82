"""Other families with shared experts, and the hybrid ones (vLLM 0.32's model files of the same names)."""

from vllm_megamoe.plan.read_config import activations as act
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
    by_step,
    by_type,
    by_type_else_all_but_first,
    every,
)

_SHARED = SharedRule(count=NUM_SHARED)
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
        shared=_SHARED,
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
    Family(("Ernie4_5_MoeForCausalLM",), where=by_interval, shared=_SHARED),
    Family(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), where=by_type, activation=act.exaone, shared=_SHARED),
    Family(("K2HorizonForCausalLM",), where=by_step, shared=_SHARED, scaling=("router_scaling_factor",)),
    Family(("AfmoeForCausalLM",), where=after_num_dense, shared=_SHARED, scaling=("route_scale",)),
    Family(("Param2MoEForCausalLM",), where=after_first, shared=_SHARED),
    Family(("SarvamMLAForCausalLM",), where=after_first, shared=_BAILING, default_scaling=2.5),
    Family(("SarvamMoEForCausalLM",), where=after_dense_only, shared=_BAILING),
    Family(
        ("LagunaForCausalLM",),
        where=by_type_else_all_but_first,
        shared=SharedRule(width=("shared_expert_intermediate_size",), module="shared_expert"),
        scaling=("moe_routed_scaling_factor",),
        scale_on_output=True,
    ),
    Family(("Cohere2MoeForCausalLM",), where=by_type, intermediate=("intermediate_size",), shared=_SHARED),
    Family(
        ("AriaTextForCausalLM",),
        where=every,
        num_experts=("moe_num_experts",),
        intermediate=("intermediate_size",),
        shared=_SHARED,
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

FAMILIES = (*BAILING, *STEP, *OTHERS, *NEMOTRON)
