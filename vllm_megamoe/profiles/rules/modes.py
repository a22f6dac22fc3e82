"""What a call computes between the two GEMMs, and how its rows come home.

The activation with its clamp and parameters; the quantisation of the returning rows, the place where the router weights
are applied, and the merging of a token's rows on each card.
"""

import math
from ctypes import c_float

from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.row import API, ARCH22_92, ARCH35_92, README, WRAPPER_92
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


@call_rule("activation")
def activation(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Its name."""
    cell = limits.activations
    if call.activation in cell.value:
        return None
    expected = "one of " + ", ".join(cell.value) if len(cell.value) > 1 else cell.value[0]
    if profile.topology == "urma":
        expected += " on URMA"
    remedy = "The model fixes it: do without the operator, or take a profile that has it (docs/limits.md)."
    return Broken("activation", repr(call.activation), expected, cell.source, remedy)


@call_rule("clamp")
def clamp(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """0 means "off" in the documents and on A2 and A3; 950 executes it, or in 9.1.0 ignores every clamp."""
    kind = limits.clamp.value
    if call.activation_clamp is None or call.activation == "situglu":
        return None
    value = _as_passed_on(call.activation_clamp)
    expected, silent, remedy = "", "", "Pass None for no clamp."
    if kind == "none":
        expected, silent = "None", "it computes without the clamp"
        remedy = "A model with a clamp needs an operator of revision 9.2."
    elif not value >= 0:
        expected = "at least 0, and a number"
    elif kind == "positive" and value == 0:
        expected, silent = (
            "above 0",
            "it clamps the up half to 0, so that y is all zeros (swigluoai: only what negative gates give)",
        )
    if not expected:
        return None
    return Broken("activation_clamp", repr(call.activation_clamp), expected, limits.clamp.source, remedy, silent)


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
    """Finite, and those of situglu above 0; 950 takes no default of situglu's beta."""
    if profile.revision == "9.1":
        return None
    source = f"{README}:509; {ARCH22_92}:377-400; {ARCH35_92}:390-420"
    if profile.is_950 and call.activation == "situglu" and "beta" not in call.activation_params:
        found = f"{dict(call.activation_params)} with situglu"
        remedy = 'Pass activation_params={"beta": 1.0}, or the beta of the model.'
        return Broken("activation_params", found, "beta, given explicitly", f"{README}:566", remedy)
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


# operator_readme.txt:590; merging holds its bookkeeping in so many blocks of 128 tokens.
_BLOCK, _BLOCKS, _PAIRS = 128, 512, 4608


def most_merged_tokens(topk: int) -> int:
    """Most that num_max_tokens_per_rank may be with combine_comm_mode=1."""
    return _BLOCK * min(_BLOCKS, _PAIRS // max(topk, 1))


@call_rule("combine-quant")
def combine_quant(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Types that rows are sent home in."""
    cell = limits.combine_quant_modes
    if buffer.combine_quant_mode in cell.value:
        return None
    expected = "one of " + ", ".join(map(str, cell.value)) if len(cell.value) > 1 else str(cell.value[0])
    remedy = "Leave it at 0 (vLLM: combine_quant=none)."
    return Broken("combine_quant_mode", str(buffer.combine_quant_mode), expected, cell.source, remedy)


@call_rule("comm-alg")
def comm_alg(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Reserved everywhere."""
    if buffer.comm_alg == "":
        return None
    source = f"{API}:312,464; {README}:580"
    return Broken("comm_alg", repr(buffer.comm_alg), "'' (reserved)", source, "Leave it out.")


@buffer_rule("topk-weights-type")
def topk_weights_type(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """Moving the router weight forward; A2 and A3 have the argument at 9.2 and do not look at it."""
    cell = limits.topk_weights_types
    if profile.revision == "9.1" or buffer.topk_weights_type in cell.value:
        return None
    expected = " or ".join(map(str, cell.value))
    silent = "it ignores the argument and weighs rows when they are home" if profile.is_a2_a3 else ""
    value = str(buffer.topk_weights_type)
    return Broken("topk_weights_type", value, expected, cell.source, "Leave it at 0.", silent)


@call_rule("merging")
def merging(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Merging a token's rows on each card."""
    cell = limits.combine_comm_modes
    if buffer.combine_comm_mode in cell.value or profile.revision == "9.1":
        return None
    where = " on URMA" if profile.topology == "urma" else ""
    value = str(buffer.combine_comm_mode)
    return Broken("combine_comm_mode", value, " or ".join(map(str, cell.value)) + where, cell.source, "Set it to 0.")


@call_rule("merging-quantised")
def merging_quantised(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Merged rows are sent as BF16; a quantised x needs its weights forward."""
    if buffer.combine_comm_mode != 1 or 1 not in limits.combine_comm_modes.value:
        return None
    expected = ""
    if buffer.combine_quant_mode != 0:
        expected = f"0 with combine_quant_mode={buffer.combine_quant_mode}"
    elif buffer.dispatch_quant_mode == 0 and buffer.topk_weights_type == 0:
        expected = "0 for a quantised x, unless topk_weights_type=1"
    if not expected:
        return None
    return Broken("combine_comm_mode", "1", expected, f"{README}:590", "Set it to 0, or change the other.")


@call_rule("merging-tokens")
def merging_tokens(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Bound of num_max_tokens_per_rank while merging."""
    most = most_merged_tokens(buffer.num_topk)
    if buffer.combine_comm_mode != 1 or 1 not in limits.combine_comm_modes.value:
        return None
    if buffer.num_max_tokens_per_rank <= most:
        return None
    expected = f"at most {most} with combine_comm_mode=1 and num_topk={buffer.num_topk}"
    value = str(buffer.num_max_tokens_per_rank)
    remedy = f"Make the buffer for {most}, or set combine_comm_mode to 0."
    return Broken("num_max_tokens_per_rank", value, expected, f"{README}:590", remedy)
