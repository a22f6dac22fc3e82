"""What a slot holds that no row landed in: open on the device, a switch here (numerics.stale_slots).

Such slots belong to masked tokens and to rows that a capacity dropped. The device sums whatever lies there.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.call import Call


def masked_rows(call: Call) -> Tensor:
    """bool [T], tokens that x_active_mask takes out."""
    mask = call.raw.mask
    return torch.zeros(len(call.sent), dtype=torch.bool) if mask is None else mask == 0


def undefined_rows(call: Call) -> Tensor | None:
    """bool [T], rows of y that a product leaves undefined: some pair of theirs is not sent. None in profile `none`.

    The device sums the slots of such pairs whatever lies in them (op kernels; operator_readme.txt says nothing). A
    numerics.stale_slots that was chosen on purpose wins over the mark.
    """
    config = call.config
    if config.found_profile.product == "none" or config.numerics.stale_slots != "zero":
        return None
    return ~call.sent.all(dim=1)


def old_rows(call: Call, slots: bool = True) -> Tensor:
    """Content of slots that nothing lands in.

    Args:
        call: of the slots.
        slots: whether there is a slot per (token, k); merged rows have none to remember, they count as zero.

    Returns:
        float32 [1, H], the same for all, or [T * K, H].
    """
    rule = call.config.numerics.stale_slots
    if rule == "old" and slots:
        return _memory(call)[: call.sent.numel()]
    return torch.full((1, call.hidden), torch.nan if rule == "nan" else 0.0, dtype=torch.float32)


def remember(call: Call, pairs: Tensor, rows: Callable[[], Tensor]) -> None:
    """Keep what landed, for the calls to come; only rule `old` pays for it."""
    if call.config.numerics.stale_slots == "old":
        _memory(call)[pairs] = rows()


def _memory(call: Call) -> Tensor:
    """float32 [>= T * K, H] of the buffer, zero where nothing ever landed."""
    held, needed = call.buffer.old_slots, call.sent.numel()
    if held is None or held.shape[1] != call.hidden:
        held = torch.zeros(0, call.hidden, dtype=torch.float32)
    if len(held) < needed:
        held = torch.cat([held, torch.zeros(needed - len(held), call.hidden, dtype=torch.float32)])
    call.buffer.old_slots = held
    return held
