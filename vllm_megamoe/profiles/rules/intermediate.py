"""Width I after the activation; half of the first weight's N."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import ARCH35_92, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule


@call_rule("intermediate")
def intermediate(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Of the routed experts."""
    width, cell = call.routed.intermediate_hidden, limits.intermediate
    if width in cell.value:
        return None
    larger = cell.value.at_least(width)
    remedy = "The operator does not take such wide experts."
    if larger is not None:
        remedy = f"Pad gate, up and down projection with zeros to {larger}."
    value = f"{width} (N = {2 * width})"
    return Broken("l1_weights: intermediate_hidden", value, str(cell.value), cell.source, remedy)


@call_rule("shared-intermediate")
def shared_intermediate(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Shared experts are as wide as the routed ones."""
    if call.shared is None or not limits.max_shared_experts.value:
        return None
    if call.shared.intermediate_hidden == call.routed.intermediate_hidden:
        return None
    value, wanted = str(call.shared.intermediate_hidden), f"{call.routed.intermediate_hidden}, as of the routed experts"
    source = f"{README}:604; {ARCH35_92} (rows and columns of the shared weights)"
    remedy = "Split a wider shared expert into several of that width."
    return Broken("shared_l1_weights: intermediate_hidden", value, wanted, source, remedy)
