"""The window of an A3 communicator: packed rows and the rows that come back, in one half only."""

from vllm_megamoe.profiles.sizes.units import KIB
from vllm_megamoe.profiles.sizes.window_a2_a3 import RESERVE, record_space, token_counts

SYNC_STATE = 512 * KIB


def least_half(
    *, ep_world_size: int, rows: int, topk: int, hidden: int, quantised: bool, sync_state: int = SYNC_STATE
) -> int:
    """Bytes that one half (window in = window out) must have at least; the receive capacity does not enter.

    torch_api.txt ("Communicator and networking constraints", Atlas A3) and op tiling arch22 of 2026-08 keep 512 KiB of
    synchronisation state; the 9.1.0 branch keeps 512 bytes per rank only. The larger one holds for 9.1 as for 9.2. The
    source later than 2026-08 bounds the rows by 1024 (it permutes in pieces), which never asks for more: the older and
    stricter term stays.

    Args:
        sync_state: least bytes of the flags; 0 gives the 9.1.0 branch's own figure.
        The others as for A2.
    """
    record = record_space(hidden, quantised)
    tensor = rows * topk * (record + hidden * 2 + (4 if quantised else 0))
    return token_counts(ep_world_size) + tensor + max(ep_world_size * 512, sync_state) + RESERVE
