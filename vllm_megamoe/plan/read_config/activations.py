"""The activation of a layer's routed or shared experts, in vLLM's terms.

Sources: the model files of vLLM 0.32 named beside each rule.
"""

from collections.abc import Callable

from vllm_megamoe.numerics.clamp import no_clamp
from vllm_megamoe.plan.facts import ActivationFacts
from vllm_megamoe.plan.read_config.keys import Keys

ActivationOf = Callable[[Keys, int], ActivationFacts]
"""From the config and a layer's number; numbers beyond the decoder are draft layers."""

# vLLM's other names for the same formula (fused_moe/activation.py).
_ALIASES = {"gelu_pytorch_tanh": "gelu_tanh"}


def hidden_act(keys: Keys, layer: int) -> ActivationFacts:
    """`hidden_act`, without a clamp."""
    name = keys.text("hidden_act", "hidden_activation", "activation", default="silu")
    return ActivationFacts(_ALIASES.get(name, name))


def silu(keys: Keys, layer: int) -> ActivationFacts:
    """SwiGLU whatever the config says, without a clamp."""
    return ActivationFacts("silu")


def clamped(keys: Keys, layer: int) -> ActivationFacts:
    """`hidden_act` and `swiglu_limit` (deepseek_v4, glm5next, hy_v4: gate and up are clamped before the product)."""
    return ActivationFacts(hidden_act(keys, layer).name, keys.bound("swiglu_limit"))


def deepseek_v4(keys: Keys, layer: int) -> ActivationFacts:
    """As `clamped`; a config without `swiglu_limit` means 10, the default of the model's config class (deepseek_v4)."""
    return ActivationFacts(hidden_act(keys, layer).name, keys.bound("swiglu_limit", default=10.0))


def gelu_tanh(keys: Keys, layer: int) -> ActivationFacts:
    """Always GELU with tanh (gemma4)."""
    return ActivationFacts("gelu_tanh")


def relu2_without_gate(keys: Keys, layer: int) -> ActivationFacts:
    """`mlp_hidden_act` of experts that have no gate (nemotron_h)."""
    return ActivationFacts(keys.text("mlp_hidden_act", default="relu2") + "_no_mul")


def gpt_oss(keys: Keys, layer: int) -> ActivationFacts:
    """Fixed in the model's code; `hidden_act` says silu and is not read (gpt_oss)."""
    return ActivationFacts("swigluoai", limit=7.0, alpha=1.702, beta=1.0)


def minimax_m3(keys: Keys, layer: int) -> ActivationFacts:
    """SwiGLU-OAI with separate halves; the defaults are those of vLLM's config class, which fills absent keys."""
    return ActivationFacts(
        "swigluoai_uninterleave",
        limit=keys.bound("swiglu_limit", default=7.0),
        alpha=keys.number("swiglu_alpha", default=1.702),
        beta=keys.number("swiglu_beta", default=1.0),
    )


def step3p5(keys: Keys, layer: int) -> ActivationFacts:
    """`swiglu_limits[layer]`: the clamp comes after silu, unlike a plain `swiglu_limit` (step3p5)."""
    return _stepped(_at(keys, "swiglu_limits", layer))


def step3p5_shared(keys: Keys, layer: int) -> ActivationFacts:
    """`swiglu_limits_shared[layer]` (step3p5)."""
    return _stepped(_at(keys, "swiglu_limits_shared", layer))


def exaone(keys: Keys, layer: int) -> ActivationFacts:
    """`swiglu_limits[layer]` as a clamp before the product (exaone_moe)."""
    return ActivationFacts("silu", _at(keys, "swiglu_limits", layer))


def bailing_v3(keys: Keys, layer: int) -> ActivationFacts:
    """`expert_swiglu_limit_list[layer]` as a clamp before the product (bailing_moe_v3)."""
    return ActivationFacts("silu", _at(keys, "expert_swiglu_limit_list", layer))


def bailing_v3_shared(keys: Keys, layer: int) -> ActivationFacts:
    """`share_expert_swiglu_limit_list[layer]`, whose clamp comes after silu (bailing_moe_v3)."""
    return _stepped(_at(keys, "share_expert_swiglu_limit_list", layer))


def kimi(keys: Keys, layer: int) -> ActivationFacts:
    """`hidden_act`, and the parameters of situ (kimi_k3; a beta that is null counts as 1)."""
    name = keys.text("hidden_act", default="silu")
    if name != "situ":
        return ActivationFacts(name)
    linear = keys.number("activation_situ_linear_beta", default=0.0)
    return ActivationFacts("situ", beta=keys.number("activation_situ_beta") or 1.0, linear_beta=linear or None)


def _at(keys: Keys, name: str, layer: int) -> float | None:
    limits = keys.limits(name)
    limit = no_clamp(limits[layer]) if layer < len(limits) else None
    return limit if limit is not None and limit > 0 else None


def _stepped(limit: float | None) -> ActivationFacts:
    return ActivationFacts("swiglustep", limit) if limit else ActivationFacts("silu")
