"""The communicator's window: what the tiling check demands, what to set for it, what it costs.

Beside that what the operator's own size function returns, with its traps: for comparison with a device, never for
sizing.
"""

from dataclasses import dataclass, replace
from typing import Literal

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes import a2_a3, window_950
from vllm_megamoe.profiles.sizes.common import MIB, ceil_div, received_rows


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
        half = a2_a3.least_half_a2(
            **common, hidden=buffer.hidden, received=received_rows(profile, buffer), quantised=int8
        )
    else:
        sync_state = 0 if profile.revision == "9.1" else a2_a3.SYNC_STATE
        half = a2_a3.least_half_a3(**common, hidden=buffer.hidden, quantised=int8, sync_state=sync_state)
    return HelperSize((half + MIB) // MIB, "MB of one half")


def ccl_buffer_size(
    profile: Profile, buffer: BufferFacts, *, rows: int | None = None, quantised: bool | None = None
) -> int:
    """Least `ccl_buffer_size`, bytes of the whole window, that the operator's tiling check takes.

    A2/A3: the check halves the size (window in and window out), so this is twice the half that it needs. 950: the
    buffer's own allocation, whole. Profile `none`: 0, the twin has no window.

    Args:
        rows: tokens of the call on each rank (A2/A3 only; the check looks at the call's rows). None:
            num_max_tokens_per_rank, the most there can be.
        quantised: whether rows travel as int8 (A2/A3 only). None: whether dispatch_quant_mode is not 0.
    """
    if profile.product == "none":
        return 0
    if profile.is_950:
        return window_950.least_bytes(profile, buffer)
    return 2 * least_half(profile, buffer, rows=rows, quantised=quantised)


def smallest_window(
    profile: Profile, buffer: BufferFacts, *, rows: int | None = None, quantised: bool | None = None
) -> int:
    """Bytes of the whole window below which no package of the revision works; for judging a window that is there.

    Differs from `ccl_buffer_size`, which every package of the revision takes, on 950@9.2 alone: there the package
    allocates for itself, and its two sources differ. Arguments as of `ccl_buffer_size`.
    """
    if profile.is_950:
        return window_950.smallest_bytes(profile, buffer)
    return ccl_buffer_size(profile, buffer, rows=rows, quantised=quantised)


def least_half(profile: Profile, buffer: BufferFacts, *, rows: int | None = None, quantised: bool | None = None) -> int:
    """One half of an A2 or A3 window, bytes; arguments as of `ccl_buffer_size`."""
    tokens = buffer.num_max_tokens_per_rank if rows is None else rows
    int8 = buffer.dispatch_quant_mode != 0 if quantised is None else quantised
    if profile.product == "a2":
        return a2_a3.least_half_a2(
            ep_world_size=buffer.ep_world_size,
            rows=tokens,
            topk=buffer.num_topk,
            hidden=buffer.hidden,
            received=received_rows(profile, buffer, rows),
            quantised=int8,
        )
    return a2_a3.least_half_a3(
        ep_world_size=buffer.ep_world_size,
        rows=tokens,
        topk=buffer.num_topk,
        hidden=buffer.hidden,
        quantised=int8,
    )


def hccl_buffsize_mb(
    profile: Profile, buffer: BufferFacts, *, rows: int | None = None, quantised: bool | None = None
) -> int | None:
    """MB for HCCL_BUFFSIZE, or for `hccl_config={"hccl_buffer_size": n}`: one half of an A2 or A3 window, rounded up.

    HCCL allocates that much twice, in and out. None on 950, where the buffer allocates for itself (operator_readme.txt,
    communicator constraints), and on `none`. Arguments as of `ccl_buffer_size`.
    """
    if not profile.is_a2_a3:
        return None
    return ceil_div(least_half(profile, buffer, rows=rows, quantised=quantised), MIB)


def window_memory(
    profile: Profile, buffer: BufferFacts, *, rows: int | None = None, quantised: bool | None = None
) -> int:
    """Bytes of device memory that the window takes on a rank.

    A2/A3: both halves, each of `hccl_buffsize_mb`. 950: what the operator's size function allocates, which ignores
    combine_quant_mode, or what the tiling check demands where that is more. Arguments as of `ccl_buffer_size`.
    """
    demanded = ccl_buffer_size(profile, buffer, rows=rows, quantised=quantised)
    if profile.is_a2_a3:
        return 2 * MIB * ceil_div(demanded // 2, MIB)
    return max(demanded, operator_helper(profile, buffer).value) if profile.is_950 else 0
