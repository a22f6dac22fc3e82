"""The activation between the two GEMMs."""

import math
from ctypes import c_float

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import ARCH22_92, ARCH35_92, README, WRAPPER_92
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule


@call_rule("activation")
def activation(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Its name."""
    cell = limits.activations
    if call.activation in cell.value:
        return None
    wanted = "one of " + ", ".join(cell.value) if len(cell.value) > 1 else cell.value[0]
    if profile.topology == "urma":
        wanted += " on URMA"
    remedy = "The model fixes it; take a profile that has it."
    return Broken("activation", repr(call.activation), wanted, cell.source, remedy)


@call_rule("clamp")
def clamp(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """0 means "off" in the documents and on A2 and A3; 950 executes it, or in 9.1.0 ignores every clamp."""
    kind = limits.clamp.value
    if call.activation_clamp is None or call.activation == "situglu":
        return None
    value = _as_passed_on(call.activation_clamp)
    wanted, silent, remedy = "", "", "Pass None for no clamp."
    if kind == "none":
        wanted, silent = "None", "it computes without the clamp"
        remedy = "A model with a clamp needs an operator of revision 9.2."
    elif not value >= 0:
        wanted = "at least 0, and a number"
    elif kind == "positive" and value == 0:
        wanted, silent = (
            "above 0",
            "it clamps the up half to 0, so that y is all zeros (swigluoai: only what negative gates give)",
        )
    if not wanted:
        return None
    return Broken("activation_clamp", repr(call.activation_clamp), wanted, limits.clamp.source, remedy, silent)


@call_rule("clamp-situglu")
def clamp_situglu(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """situglu has no clamp."""
    if call.activation != "situglu" or call.activation_clamp is None or profile.revision == "9.1":
        return None
    silent = "the wrapper drops the clamp"
    value, source = repr(call.activation_clamp), f"{README}:509; {WRAPPER_92} (_normalize_activation_params)"
    return Broken("activation_clamp", value, "None with situglu", source, "Leave it out.", silent)


@call_rule("activation-params")
def activation_params(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Finite, and those of situglu above 0."""
    if profile.revision == "9.1":
        return None
    source = f"{README}:509; {ARCH22_92}:377-400; {ARCH35_92}:390-420"
    for name, given in call.activation_params.items():
        value = _as_passed_on(given)
        if not math.isfinite(value):
            return Broken(f"activation_params[{name!r}]", repr(given), "a finite float32", source, "Check the config.")
        if call.activation == "situglu" and not value > 0:
            return Broken(f"activation_params[{name!r}]", repr(given), "above 0", source, "Check the config.")
    return None


def _as_passed_on(value: float) -> float:
    """As float32, which the operator's attributes are: 1e-50 is 0 there, and 1e39 is infinite."""
    return c_float(float(value)).value
