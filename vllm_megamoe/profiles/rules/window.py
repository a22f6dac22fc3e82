"""Whether the communicator's memory is large enough."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import API, ARCH22_91, ARCH22_92, ARCH35_91, ARCH35_92
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule

_MB = 1 << 20


@call_rule("window")
def window(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """The tiling's check of ccl_buffer_size, with this call's rows on A2 and A3."""
    if call.ccl_buffer_size is None or profile.product == "none":
        return None
    # Only this rule needs the sizes, so that a table of limits loads without them.
    from vllm_megamoe.profiles.sizes import smallest_window

    quantised = call.routed.element1 in ("INT8", "INT4")
    rows = call.rows if profile.is_a2_a3 else None
    least = smallest_window(profile, buffer, rows=rows, quantised=quantised if profile.is_a2_a3 else None)
    if call.ccl_buffer_size >= least:
        return None
    if profile.is_a2_a3:
        half = -(-least // (2 * _MB))
        remedy = f"Set HCCL_BUFFSIZE={half} (MB of one half) on all ranks before the communicator is made."
        source = f"{API}:381-423; {ARCH22_91}:1031; {ARCH22_92} (CheckCclBufferSize)"
    else:
        remedy = "Create the buffer anew for this size; attributes changed after creation do not resize it."
        source = f"{ARCH35_91}:266-271; {ARCH35_92}:507-512"
    return Broken("ccl_buffer_size", str(call.ccl_buffer_size), f"at least {least} bytes", source, remedy)
