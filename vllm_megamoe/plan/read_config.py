"""MoeFacts from config.json alone: enough to refuse a configuration before an engine starts."""

from collections.abc import Mapping
from typing import Any

from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts

# Key names by family, as their published configs have them: Qwen, Mixtral and MiniMax, DeepSeek and GLM, Ernie.
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOPK = ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token")
_INTERMEDIATE = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
# Families whose experts carry biases although no key says so.
_BIASED = frozenset({"gpt_oss"})


def read_moe_facts(config: Mapping[str, Any], experts_format: str = "bf16") -> MoeFacts | None:
    """Facts of the model's MoE layers, or None when the config names no routed experts.

    Args:
        config: config.json as a mapping; a multimodal model's `text_config` is looked into.
        experts_format: what the checkpoint's quantisation makes of the experts.
    """
    text = config.get("text_config")
    source = text if isinstance(text, Mapping) else config
    num_experts = _first(source, _NUM_EXPERTS)
    topk = _first(source, _TOPK)
    intermediate = _first(source, _INTERMEDIATE)
    if not num_experts or not topk or not intermediate or num_experts < 2:
        return None
    model_type = str(source.get("model_type", config.get("model_type", "")))
    return MoeFacts(
        name=f"{model_type or 'model'}, every MoE layer",
        num_experts=num_experts,
        topk=topk,
        hidden=int(source["hidden_size"]),
        intermediate_hidden=intermediate,
        activation=ActivationFacts(
            str(source.get("hidden_act") or source.get("hidden_activation") or "silu"), source.get("swiglu_limit")
        ),
        has_bias=model_type in _BIASED,
        experts_format=experts_format,
    )


def _first(source: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = source.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
