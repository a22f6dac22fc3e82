"""Whether the shared experts run inside the operator's call or on vLLM's own path, and why."""

from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.plan.activation import plan_activation
from vllm_megamoe.plan.facts import MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.profiles.limits import Limits, limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import UseCase


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Where the shared experts run.

    Attributes:
        mode: `fused` in the operator's call, `vllm` on vLLM's own path, `none` when there are none.
        pieces: experts of the routed width that a fused MLP is cut into, gate and up rows separately.
        reason: why not `fused`, empty otherwise.
    """

    mode: Literal["none", "fused", "vllm"]
    pieces: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.mode == "none":
            return "none"
        if self.mode == "vllm":
            return f"vLLM's own path ({self.reason})"
        return f"fused, {self.pieces} of the routed width"


def plan_shared(layer: MoeFacts, use_case: UseCase, profile: Profile, options: Options) -> SharedPlan:
    """Fuse wherever profile, weights and model allow it, unless the user forbids it."""
    shared = layer.shared
    if shared is None:
        return SharedPlan("none")
    reason = "fuse_shared_experts is off" if options.fuse_shared_experts == "off" else ""
    limits = limits_of(profile)
    reason = reason or _product(limits, use_case) or _model(layer, shared, limits)
    if reason:
        return SharedPlan("vllm", 0, reason)
    return SharedPlan("fused", shared.intermediate_hidden // layer.intermediate_hidden)


def _product(limits: Limits, use_case: UseCase) -> str:
    if not limits.max_shared_experts.value:
        return limits.max_shared_experts.why
    return "" if use_case in limits.shared_use_cases.value else limits.shared_use_cases.why


def _model(layer: MoeFacts, shared: SharedFacts, limits: Limits) -> str:
    if shared.gated:
        return "a gate per token multiplies them, the operator adds them unweighted"
    if shared.hidden != layer.hidden:
        return f"their rows have {shared.hidden} values, the routed experts' {layer.hidden}"
    if plan_activation(shared.activation) != plan_activation(layer.activation):
        mine, routed = plan_activation(shared.activation), plan_activation(layer.activation)
        return f"their activation is {mine or shared.activation.name}, the routed experts' {routed}"
    if shared.experts_format != layer.experts_format:
        return f"their format is {shared.experts_format}, the routed experts' {layer.experts_format}"
    pieces, rest = divmod(shared.intermediate_hidden, layer.intermediate_hidden)
    if rest or not pieces:
        return f"their width {shared.intermediate_hidden} is no multiple of the routed {layer.intermediate_hidden}"
    if pieces > limits.max_shared_experts.value:
        return f"they would be {pieces} experts of the routed width, and {limits.max_shared_experts.why}"
    return ""
