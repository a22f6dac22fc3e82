"""Where a layer sits in the running engine: its communicator, and what the other ranks bring."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


def _own(rows: int) -> int:
    return rows


@dataclass(frozen=True, slots=True)
class Seat:
    """What the method needs of vLLM's parallel state; a lane fills it in.

    Attributes:
        group: the expert-parallel process group, None for a single rank.
        rank, size: this rank's place in it.
        all_gather: rows [t, H] of every rank -> [size * t, H] in rank order, over the same ranks.
        largest_rows: this rank's rows in the step that is running -> those of the rank that brings most; the same
            number on all ranks, known to the host without a collective.
    """

    group: ProcessGroup | None
    rank: int
    size: int
    all_gather: Callable[[Tensor], Tensor]
    largest_rows: Callable[[int], int] = _own


def share_of(rows: int, seat: Seat) -> tuple[int, int, int]:
    """Cut replicated rows into equal shares: (start, stop, share) of this rank; late ranks may get fewer, or none."""
    share = -(-rows // seat.size)
    start = min(seat.rank * share, rows)
    return start, min(start + share, rows), share


def gather_shares(y: Tensor, rows: int, share: int, seat: Seat) -> Tensor:
    """The inverse of `share_of`: y [t <= share, H] of every rank -> [rows, H] complete on every rank."""
    if y.shape[0] < share:
        y = torch.cat([y, y.new_zeros(share - y.shape[0], y.shape[1])])
    return seat.all_gather(y)[:rows]
