"""Shared experts."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule
from vllm_megamoe.profiles.rules.weights import wrong_format, wrong_use_case


def _out(buffer: BufferFacts, call: CallFacts) -> str | None:
    return call.shared_out_dtype or buffer.dispatch_quant_out_dtype


@call_rule("shared-experts")
def shared_experts(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """How many there may be; A2 and A3 have the arguments at 9.2 and do not look at them."""
    cell = limits.max_shared_experts
    if profile.revision == "9.1" or call.shared is None or call.shared.count <= cell.value:
        return None
    remedy = "Let vLLM compute the shared experts (fuse_shared_experts=off)."
    value = f"{call.shared.count} experts"
    silent = "it leaves the shared experts out of y" if profile.is_a2_a3 else ""
    return Broken("shared_l1_weights", value, f"at most {cell.value}", cell.source, remedy, silent)


@call_rule("shared-type")
def shared_type(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """On URMA they have the routed experts' type; beside a quantised x they are fed what x is."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    elements = (call.routed.element1, buffer.dispatch_quant_out_dtype)
    found = (call.shared.element1, _out(buffer, call))
    if found == elements:
        return None
    source = ""
    if not limits.mixed_shared.value:
        source = limits.mixed_shared.source
    elif buffer.dispatch_quant_mode == 0 and found[1] != elements[1]:
        source = f"{README}:578"
    if not source:
        return None
    value = f"{found[0]} behind rows of {found[1]}"
    wanted = f"{elements[0]} behind rows of {elements[1]}, as the routed experts"
    return Broken("shared_l1_weights", value, wanted, source, "Quantise both alike, or do not fuse the shared experts.")


@call_rule("shared-use-case")
def shared_use_case(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """They too are of one use case of the product."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    return wrong_use_case("shared_l1_weights", call.shared, _out(buffer, call), profile, limits)


@call_rule("shared-format")
def shared_format(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Formats of their own type."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    name = "shared_l1_weights, shared_l2_weights"
    return wrong_format(name, call.shared, _out(buffer, call), profile, limits)


@call_rule("shared-layout")
def shared_layout(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """List or stack, as the routed experts."""
    if call.shared is None or not limits.max_shared_experts.value or call.shared.stacked == call.routed.stacked:
        return None
    words = ("a list", "a stack")
    value, wanted = words[call.shared.stacked], f"{words[call.routed.stacked]}, as l1_weights"
    return Broken("shared_l1_weights", value, wanted, f"{README}:609", "Stack both or neither.")
