"""Whether the shared experts run inside the operator's call or on vLLM's own path, and why."""

from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.plan.activation import plan_activation
from vllm_megamoe.plan.facts import MoeFacts, SharedFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.profiles.limits import Limits, limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

GROUP = 32
"""Inputs that share a scale in MX formats (OCP Microscaling 1.0)."""
_WHOLE_CHANNELS = ("bf16", "int8", "int4")
"""Kinds of numbers without scales, or with one for a whole output channel, which may be cut anywhere."""


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Where the shared experts run.

    Attributes:
        mode: `fused` in the operator's call, `vllm` on vLLM's own path, `none` when there are none.
        pieces: experts of the routed width that a fused MLP is cut into, gate and up rows separately.
        reason: why not `fused`, empty otherwise.
        use_case: what fused ones run as, None otherwise. On 950 of 9.2 it may be another one than the routed experts'.
    """

    mode: Literal["none", "fused", "vllm"]
    pieces: int = 0
    reason: str = ""
    use_case: UseCase | None = None

    def __str__(self) -> str:
        if self.mode == "none":
            return "none"
        if self.mode == "vllm":
            return f"vLLM's own path ({self.reason})"
        return f"fused, {self.pieces} of the routed width"


def plan_shared(
    layer: MoeFacts, use_case: UseCase, profile: Profile, options: Options, *, lora: bool = False
) -> SharedPlan:
    """Fuse wherever profile, weights and model allow it, unless the user forbids it or adapters may patch them."""
    shared = layer.shared
    if shared is None:
        return SharedPlan("none")
    reason = "fuse_shared_experts is off" if options.fuse_shared_experts == "off" else ""
    if lora:
        reason = reason or "LoRA adapters may patch them"
    limits = limits_of(profile)
    ways = _use_cases(layer, shared, use_case, limits)
    reason = (
        reason or _product(limits, use_case, ways) or _model(layer, shared, limits) or _format(shared, use_case, ways)
    )
    if reason:
        return SharedPlan("vllm", 0, reason)
    return SharedPlan("fused", shared.intermediate_hidden // layer.intermediate_hidden, use_case=ways[0])


def _use_cases(layer: MoeFacts, shared: SharedFacts, routed: UseCase, limits: Limits) -> list[UseCase]:
    """What they may run as beside the routed experts, the best first.

    Stored alike they go the routed experts' way, which the user has consented to where it loses anything. Another
    format needs a use case that keeps every number. INT4 has none: the operator takes no bias for shared experts.
    """
    takes = limits.shared_use_cases.value
    if shared.experts_format == layer.experts_format:
        exact = [routed]
    else:
        facts = shared.experts_format.facts
        exact = [UseCase(name) for name in facts.use_cases] if facts.loads else []
        # Rows are dispatched in groups of 32 or are not: a family cannot feed another one.
        family = USE_CASES[routed].family
        exact = [case for case in exact if USE_CASES[case].family == family]
        exact.sort(key=lambda case: case is not routed)
    return [case for case in exact if case in takes and (case is routed or limits.mixed_shared.value)]


def _product(limits: Limits, routed: UseCase, ways: list[UseCase]) -> str:
    if not limits.max_shared_experts.value:
        return limits.max_shared_experts.why
    return limits.shared_use_cases.why if not ways and routed not in limits.shared_use_cases.value else ""


def _format(shared: SharedFacts, routed: UseCase, ways: list[UseCase]) -> str:
    if ways:
        return ""
    return f"their format is {shared.experts_format}, which the operator does not hold exactly beside {routed.value}"


def _model(layer: MoeFacts, shared: SharedFacts, limits: Limits) -> str:
    if shared.gated:
        return "a gate per token multiplies them, the operator adds them unweighted"
    if shared.hidden != layer.hidden:
        return f"their rows have {shared.hidden} values, the routed experts' {layer.hidden}"
    if plan_activation(shared.activation) != plan_activation(layer.activation):
        mine, routed = plan_activation(shared.activation), plan_activation(layer.activation)
        return f"their activation is {mine or shared.activation.name}, the routed experts' {routed}"
    pieces, rest = divmod(shared.intermediate_hidden, layer.intermediate_hidden)
    if rest or not pieces:
        return f"their width {shared.intermediate_hidden} is no multiple of the routed {layer.intermediate_hidden}"
    if pieces > 1 and layer.intermediate_hidden % GROUP and shared.experts_format.facts.stored not in _WHOLE_CHANNELS:
        return f"they cannot be cut into {pieces} where a scale serves {GROUP} of their {layer.intermediate_hidden}"
    if pieces > limits.max_shared_experts.value:
        return f"they would be {pieces} experts of the routed width, and {limits.max_shared_experts.why}"
    return ""
