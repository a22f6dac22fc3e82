"""Rows on their way into calls: whose they are, how a step is cut, what fills a call up.

All ranks of a communicator must make the same number of calls in a step, whatever each of them brings, and a call has
at least one row. So what decides the number is the largest rank's rows, which every rank knows (`Seat.largest_rows`):

    step of a rank   rows 0..own                    `share_of`: where all ranks hold the same rows, each takes a share
    calls            [start, stop) of own rows      `cut_step`: as many as the largest rank needs
    one call         stop - start rows, filled up   `pad_rows`: rows that no expert sees; their results are cut off
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

from vllm_megamoe.layer.expert_load import StepKind, always_served
from vllm_megamoe.plan.capacity import Capacity, step_calls


def _own(rows: int) -> int:
    return rows


def _none(rows: int) -> int:
    del rows
    return 0


@dataclass(frozen=True, slots=True)
class Seat:
    """What the method needs of vLLM's parallel state; a lane fills it in.

    Attributes:
        group: the expert-parallel process group, None for a single rank.
        rank, size: this rank's place in it.
        all_gather: rows [t, H] of every rank -> [size * t, H] in rank order, over the same ranks.
        largest_rows: this rank's rows in the step that is running -> those of the rank that brings most; the same
            number on all ranks, known to the host without a collective.
        kind_of_step: whose rows the step that is running brings, see StepKind. Warm-up is the same on all ranks; an
            idle step's rows reach no expert.
        first_row: this rank's rows in a layer that gets its own -> place of their first one among the rows of the step,
            where the tensor-parallel ranks have split them.
    """

    group: ProcessGroup | None
    rank: int
    size: int
    all_gather: Callable[[Tensor], Tensor]
    largest_rows: Callable[[int], int] = _own
    kind_of_step: Callable[[], StepKind] = always_served
    first_row: Callable[[int], int] = _none


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


@dataclass(frozen=True, slots=True)
class Piece:
    """One call's part of a step.

    Attributes:
        start, stop: this rank's rows in it; none when it has fewer rows than the step has calls.
        rows: rows that the call brings after padding.
    """

    start: int
    stop: int
    rows: int


@lru_cache(maxsize=4096)
def cut_step(own: int, largest: int, capacity: Capacity) -> tuple[Piece, ...]:
    """Cut `own` rows of this rank evenly into the calls of a step whose largest rank brings `largest`.

    The number of calls and, unless `capacity.pad` is `own`, the rows of each depend on `largest` alone, which is the
    same on all ranks; so a rank without rows makes as many calls as the others (B09, B17). Every call has at least one
    row, because the device takes no call without (operator_readme.txt, BS).
    """
    calls, most = step_calls(largest, capacity.chunk)
    bounds = [own * n // calls for n in range(calls + 1)]
    # A piece holds at most ceil(own / calls) rows, and that is at most `most`, because own is at most largest.
    common = {"own": 1, "dp_max": most, "num_max": capacity.chunk}[capacity.pad]
    return tuple(Piece(start, stop, max(stop - start, common)) for start, stop in pairwise(bounds))


@dataclass(frozen=True, slots=True)
class Mask:
    """Which rows of a step are real, in the forms that calls need: made once a step, for all of its layers.

    Attributes:
        active: int8 [T], 1 for real rows.
        padding: bool [T, 1], true for rows that the platform has filled up with.
    """

    active: Tensor
    padding: Tensor

    @classmethod
    def of(cls, real: Tensor) -> "Mask":
        """Of bool [T]."""
        return cls(real.to(torch.int8), ~real[:, None])

    def __getitem__(self, rows: slice) -> "Mask":
        return Mask(self.active[rows], self.padding[rows])


@dataclass(frozen=True, slots=True)
class CallRows:
    """The rows of one call: x [R, H], topk_ids int32 [R, K], topk_weights [R, K], mask int8 [R] or None."""

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    mask: Tensor | None = None


def pad_rows(
    x: Tensor, topk_ids: Tensor, topk_weights: Tensor, rows: int, *, masked: bool, active: Mask | None = None
) -> CallRows:
    """Add zero rows behind the n given ones until there are `rows`; nothing is copied when there are already.

    Args:
        x, topk_ids, topk_weights: [n, H], [n, K], [n, K].
        rows: n or more.
        masked: say it with a mask (A2/A3, x_active_mask). The operator overwrites the ids of masked rows in place: of
            added rows in a copy (B20), of rows that `active` takes out in the router's own, which nobody reads again.
            Ids of added rows are distinct and in range until then, which the documents demand of every row (B21).
            Without a mask (950 has none) ids of -1 say it: they match no expert (B18).
        active: of the given rows; None where all are real.
    """
    n = x.shape[0]
    if active is not None and not masked:
        topk_ids = topk_ids.masked_fill(active.padding, -1)
    if n == rows:
        return CallRows(x, topk_ids, topk_weights, active.active if active is not None and masked else None)
    below = (0, 0, 0, rows - n)
    x, topk_weights = pad(x, below), pad(topk_weights, below)
    if not masked:
        return CallRows(x, pad(topk_ids, below, value=-1), topk_weights)
    topk = topk_ids.shape[1]
    filler = torch.arange(topk, dtype=topk_ids.dtype, device=topk_ids.device).expand(rows - n, topk)
    real = torch.ones(n, dtype=torch.int8, device=x.device) if active is None else active.active
    return CallRows(x, torch.cat([topk_ids, filler]), topk_weights, pad(real, (0, rows - n)))
