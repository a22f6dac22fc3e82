"""What the operator's own size function returns, with its traps: for comparison with a device, never for sizing."""

from dataclasses import dataclass, replace
from typing import Literal

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.call_facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes import window_950, window_a2, window_a3
from vllm_megamoe.profiles.sizes.received import received_rows
from vllm_megamoe.profiles.sizes.units import MIB


@dataclass(frozen=True, slots=True)
class HelperSize:
    """A size as `_get_mega_moe_ccl_buffer_size` gives it.

    Attributes:
        value: the number.
        unit: `MB of one half` on A2/A3, `bytes` of the whole window on 950.
    """

    value: int
    unit: Literal["MB of one half", "bytes"]


def operator_helper(profile: Profile, buffer: BufferFacts) -> HelperSize:
    """The value that `_get_mega_moe_ccl_buffer_size` computes for these arguments.

    A2/A3: MB of one half, (bytes + 1 MB) // 1 MB; it counts int8 rows only for dispatch_quant_mode 4, which A2/A3 never
    use, so int8 gets the bf16 figure (op csrc mega_moe.cpp, both revisions). Its A3 flags are 512 bytes per rank in
    9.1.0 and 512 KiB at least in 2026-08. 950: bytes of the whole window, although the function that computes it is
    named for MB of a half; combine_quant_mode and FP4 do not enter.

    Raises:
        ConfigError: profile `none`, which has no such function.
    """
    if profile.product == "none":
        raise ConfigError("profile 'none' has no operator whose size function could be asked; choose a product's one.")
    if profile.is_950:
        unquantised = replace(buffer, combine_quant_mode=0)
        return HelperSize(window_950.bitmap_window(unquantised), "bytes")
    int8 = buffer.dispatch_quant_mode == 4
    common = {"ep_world_size": buffer.ep_world_size, "rows": buffer.num_max_tokens_per_rank, "topk": buffer.num_topk}
    if profile.product == "a2":
        half = window_a2.least_half(
            **common, hidden=buffer.hidden, received=received_rows(profile, buffer), quantised=int8
        )
    else:
        sync_state = 0 if profile.revision == "9.1" else window_a3.SYNC_STATE
        half = window_a3.least_half(**common, hidden=buffer.hidden, quantised=int8, sync_state=sync_state)
    return HelperSize((half + MIB) // MIB, "MB of one half")
