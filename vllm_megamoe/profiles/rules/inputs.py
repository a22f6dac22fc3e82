"""x, its scales, the router weights and the mask."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import API, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule


def is_quantised(limits: Limits, buffer: BufferFacts) -> bool:
    """Whether x comes quantised: dispatch mode 0 with a type, where there is such a thing."""
    out = buffer.dispatch_quant_out_dtype
    return limits.prequantised.value and buffer.dispatch_quant_mode == 0 and out not in (None, "BF16")


@call_rule("x-dtype")
def x_dtype(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """BF16, or what the buffer says of a quantised x."""
    wanted = buffer.dispatch_quant_out_dtype if is_quantised(limits, buffer) else "BF16"
    if call.x_dtype == wanted:
        return None
    source = f"{API}:319; {README}:481,550-552,578"
    return Broken("x.dtype", call.x_dtype, str(wanted), source, "Convert x.")


@call_rule("x-scales")
def x_scales(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """With a quantised x, and with no other."""
    wanted = is_quantised(limits, buffer)
    if profile.revision == "9.1" or call.has_scales == wanted:
        return None
    value, rule = ("None", "E8M0 scales of x") if wanted else ("a tensor", "None, because x is quantised inside")
    return Broken("scales", value, rule, f"{README}:556,597", "Pass scales with a quantised x only.")


@call_rule("router-weights")
def router_weights(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Kernels of A2 and A3 read float32 whatever the tensor is."""
    cell = limits.router_weights
    if call.topk_weights_dtype in cell.value:
        return None
    silent = ""
    if profile.is_a2_a3 and call.topk_weights_dtype == "BF16":
        silent = "it reads the BF16 memory as float32, two weights as one, and beyond its end"
    wanted = " or ".join(cell.value)
    return Broken("topk_weights.dtype", call.topk_weights_dtype, wanted, cell.source, "Convert with .float().", silent)


@call_rule("mask")
def mask(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """950 has none."""
    if limits.mask.value or not call.has_mask:
        return None
    remedy = "Give the rows ids of -1 instead, and do not read their rows of y."
    return Broken("x_active_mask", "a tensor", "None", limits.mask.source, remedy)


@call_rule("call-arguments")
def call_arguments(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Arguments that 9.1.0 does not have."""
    if profile.revision != "9.1":
        return None
    given = {
        "scales": call.has_scales,
        "activation_params": bool(call.activation_params),
        "shared_l1_weights": call.shared is not None,
        "shared_expert_quant_out_dtype": call.shared_out_dtype is not None,
    }
    return _first_given(given)


def _first_given(given: dict[str, bool]) -> Broken | None:
    for name, is_given in given.items():
        if is_given:
            remedy = "Leave it out, or use an operator of revision 9.2."
            return Broken(name, "given", "nothing: 9.1.0 has no such argument", f"{API}:291,295", remedy)
    return None
