"""How many rows an operator call takes, and how a step is cut into calls.

Everything follows from `max_num_batched_tokens` and the tensor-parallel split, never from the sizes that graphs are
captured for: a prefill brings more rows than any of these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Pad = Literal["own", "dp_max", "num_max"]
"""Rows of a call: this rank's own number (at least 1), the largest over the ranks, or always the buffer's maximum."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Rows per step and per call.

    Attributes:
        rows: most rows of a step that this rank brings.
        chunk: most rows of one call, `num_max_tokens_per_rank` of the buffer; equal on all ranks.
        calls: calls of the largest step.
        pad: to how many rows a call is padded; padding reaches no expert.
        max_recv_token_num: of the buffer; 0 for as many as can come.
        receive_bound: rows that a rank can receive at most in a call.
        workspace_bytes: of the largest call.
    """

    rows: int
    chunk: int
    calls: int
    pad: Pad
    max_recv_token_num: int
    receive_bound: int
    workspace_bytes: int

    @property
    def drops(self) -> bool:
        """Whether rows may be dropped at the receiver (the user allowed it)."""
        return 0 < self.max_recv_token_num < self.receive_bound


def step_calls(rows: int, chunk: int) -> tuple[int, int]:
    """(calls, rows of each) for a step whose largest rank brings `rows`: equal pieces, the fewest that fit.

    `rows` must be the same number on all ranks, so that all of them make the same calls.
    """
    calls = max(1, -(-rows // chunk))
    return calls, max(1, -(-rows // calls))


def largest_chunk(rows: int, limit: int | None, workspace: Callable[[int], int], budget: int) -> int:
    """The largest number of rows up to `rows` and `limit` whose workspace fits; 0 when not even one row's does.

    Args:
        workspace: bytes for a call of so many rows; grows with the rows.
    """
    high = rows if limit is None else min(rows, limit)
    if workspace(high) <= budget:
        return high
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if workspace(middle) <= budget:
            low = middle
        else:
            high = middle
    return low
