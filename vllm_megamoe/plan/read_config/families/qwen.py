"""Qwen's line: shared experts stand behind a sigmoid gate (vLLM 0.32's qwen2_moe, qwen3_moe, qwen3_next, qwen3_5,
qwen4_exp)."""

from vllm_megamoe.plan.read_config.family import DraftRule, Family, SharedRule
from vllm_megamoe.plan.read_config.where import by_step, every

_SHARED = SharedRule(width=("shared_expert_intermediate_size",), module="shared_expert", gated=True)

FAMILIES = (
    Family(("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"), where=by_step, shared=_SHARED),
    Family(
        ("Qwen3NextForCausalLM",),
        where=by_step,
        shared=_SHARED,
        drafts=DraftRule(name="mtp.layers.{layer}.mlp.experts", after_decoder=False),
    ),
    Family(
        ("Qwen3_5MoeForCausalLM", "Qwen4ExpForCausalLM"),
        where=every,
        shared=_SHARED,
        drafts=DraftRule(name="mtp.layers.{layer}.mlp.experts", after_decoder=False),
    ),
    Family(("InternS1ProForCausalLM",), where=by_step),
)
