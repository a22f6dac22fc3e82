"""What the tokens are quantised to on their way out."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


def _shown(mode: int, out: str | None) -> str:
    return f"({mode}, {out})"


@buffer_rule("fp4-dispatch")
def fp4_dispatch(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """950 in 9.1.0 has no FP4 kernel, yet its host takes the type."""
    if profile.name != "950@9.1" or buffer.dispatch_quant_out_dtype != "FLOAT4_E2M1":
        return None
    wanted = "FLOAT8_E5M2 or FLOAT8_E4M3FN"
    silent = "it quantises to FLOAT8_E5M2 in its place"
    remedy = "Use FP8, or an operator of revision 9.2."
    return Broken("dispatch_quant_out_dtype", "FLOAT4_E2M1", wanted, limits.dispatch.source, remedy, silent)


@call_rule("dispatch")
def dispatch(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Mode and type go together; the size function that creation runs does not look at them, the tiling does."""
    found = (buffer.dispatch_quant_mode, buffer.dispatch_quant_out_dtype)
    if found in limits.dispatch.value:
        return None
    if profile.name == "950@9.1" and found == (4, "FLOAT4_E2M1"):
        return None  # its host takes it: see `fp4_dispatch`
    pairs = sorted(limits.dispatch.value, key=lambda pair: (pair[0], pair[1] or ""))
    wanted = "one of " + ", ".join(_shown(*pair) for pair in pairs)
    remedy = "Create the buffer with both, for the weights that it serves."
    names = "(dispatch_quant_mode, dispatch_quant_out_dtype)"
    return Broken(names, _shown(*found), wanted, limits.dispatch.source, remedy)
