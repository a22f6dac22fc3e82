"""Switches that let the simulated device be wrong on purpose, so that a check can be proven to notice.

Each is a question that the operator's source leaves open, or a fault that some build has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from vllm_megamoe.environment import DEVIATIONS


@dataclass(frozen=True, slots=True)
class Deviations:
    """What differs from the device as its source describes it; nothing by default.

    Attributes:
        excess8_nibbles: INT4 weights are read as value + 8, the way the documents' example packs them (torch_api.txt,
            A8W4 example); the kernel reads two's complement.
        window_factor_1: HCCL reports HCCL_BUFFSIZE once instead of twice for a communicator's window; that it counts
            both directions is documented, not read in its source.
        w4a8_receive: the combine of A8W4-INT compares packed rows, two for each row, with max_recv_token_num; builds of
            CANN 9.1 before 2026-07-23 do (there it holds without this switch, on A3).
        fp16_saturates: an integer GEMM's fp16 result saturates at 65504 instead of becoming infinite.
        scale_bits_18: the fixpipe takes 18 bits of a channel scale (sign, exponent, 9 bits of mantissa), one fewer than
            the 19 that a sibling operator takes.
        overflow_ends: more rows than max_recv_token_num end the call with AICore error 507057 instead of losing the
            tail in silence; both endings are reported of A3 (vllm-ascend #17202 and #11258).
    """

    excess8_nibbles: bool = False
    window_factor_1: bool = False
    w4a8_receive: bool = False
    fp16_saturates: bool = False
    scale_bits_18: bool = False
    overflow_ends: bool = False


_active: ContextVar[Deviations | None] = ContextVar("vllm_megamoe_deviations", default=None)


def active_deviations() -> Deviations:
    """Those of the innermost open `deviations(...)` block, outside of any those of VLLM_MEGAMOE_DEVIATIONS.

    Raises:
        ConfigError: the variable names something else.
    """
    active = _active.get()
    return Deviations(**dict.fromkeys(DEVIATIONS.read() or (), True)) if active is None else active


@contextmanager
def deviations(**switches: bool) -> Iterator[Deviations]:
    """Turn switches on inside a `with` block, on this rank.

    Args:
        switches: fields of Deviations.
    """
    inside = replace(active_deviations(), **switches)
    token = _active.set(inside)
    try:
        yield inside
    finally:
        _active.reset(token)
