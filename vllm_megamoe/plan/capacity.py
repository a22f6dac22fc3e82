"""How many rows an operator call takes, and how a step is cut into calls.

Everything follows from `max_num_batched_tokens` and the tensor-parallel split, never from the sizes that graphs are
captured for: a prefill brings more rows than any of these. A call takes as many rows as the product's limits and the
budget for its workspace allow; how many rows a rank may receive in it follows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.plan.agreement import ALONE, Agreement
from vllm_megamoe.plan.facts import EngineFacts, MoeFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.verdict import Violation
from vllm_megamoe.profiles.limits import Limits, limits_of
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.modes import most_merged_tokens
from vllm_megamoe.profiles.sizes.common import GIB, ceil_div
from vllm_megamoe.profiles.use_cases import UseCase

Pad = Literal["own", "dp_max", "num_max"]
"""Rows of a call: this rank's own number (at least 1), the largest over the ranks, or always the buffer's maximum."""

_PADS: dict[str, Pad] = {"any": "own", "alike": "dp_max", "full": "num_max"}

WorkspaceOf = Callable[[int, int], int]
"""Bytes of workspace of a call, from its rows and the buffer's max_recv_token_num."""


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


def plan_capacity(
    engine: EngineFacts,
    layer: MoeFacts,
    use_case: UseCase,
    profile: Profile,
    options: Options,
    workspace_of: WorkspaceOf,
    agreed: Agreement = ALONE,
) -> tuple[Capacity, list[Violation]]:
    """Rows of a step and of a call, and the receive capacity that the buffer gets; with what is wrong with them."""
    # Rows that tensor-parallel ranks share are split over them, so each brings a share of the step's rows.
    rows = max(1, ceil_div(engine.max_num_batched_tokens, engine.tensor_parallel))
    limits, asked = limits_of(profile), options.max_recv_token_num
    # The combine of W4A8 on A3 of 9.1.0 counts packed rows, two for each token; 0 would not do (op 9aa8113f8 fixes it).
    factor = max(receive_factor(use_case, profile), agreed.receive_factor)
    topk, per_rank = layer.topk, layer.physical_experts // engine.ep_size

    def bound_of(tokens: int) -> int:
        return tokens * engine.ep_size * min(topk, per_rank)

    def receive(tokens: int, limit: int) -> int:
        return factor * bound_of(tokens) if factor > 1 and not limit else limit

    def least_workspace(tokens: int) -> int:
        # A limit saves memory only where rows may be lost; else it must hold all that can come, and so decides nothing.
        lossy = options.allow_token_drop and asked < bound_of(tokens)
        return workspace_of(tokens, receive(tokens, asked if lossy else 0))

    budget = int(options.workspace_budget_gib * GIB)
    chunk = largest_chunk(rows, _most_rows(limits, layer, options, agreed), least_workspace, budget)
    found = [] if chunk else [_budget(options, least_workspace(1))]
    chunk = ceil_div(rows, ceil_div(rows, max(chunk, 1)))
    bound, given = bound_of(chunk), receive(chunk, asked)
    needed = workspace_of(chunk, given)
    if 0 < asked < bound and not options.allow_token_drop:
        sum_ = f"{chunk} rows x {engine.ep_size} ranks x min({topk}, {per_rank})"
        found.append(_receive(options, f"0 or at least {bound} = {sum_}", factor * bound))
    elif asked > bound and not found and needed > budget:
        expected = f"0 or {factor * bound}: no more can come, and it needs {needed / GIB:.3f} GiB"
        found.append(_receive(options, expected, factor * bound))
    return Capacity(rows, chunk, ceil_div(rows, chunk), _PADS[limits.rows.value], given, bound, needed), found


def receive_factor(use_case: UseCase, profile: Profile) -> int:
    """How many times the rows that may come a buffer must be told; 0 of a product without INT4 is none."""
    return limits_of(profile).receive_factor_int4.value if use_case is UseCase.A8W4_INT else 1


def _most_rows(limits: Limits, layer: MoeFacts, options: Options, agreed: Agreement) -> int | None:
    """The product's bound of num_max_tokens_per_rank, and the other layers'; merging on the card has one of its own."""
    merges = options.combine_comm_mode == 1 and 1 in limits.combine_comm_modes.value
    bounds = [limits.max_tokens.value, agreed.most_rows, most_merged_tokens(layer.topk) if merges else None]
    return min((bound for bound in bounds if bound is not None), default=None)


def _budget(options: Options, least: int) -> Violation:
    enough = math.ceil(1000 * least / GIB) / 1000
    got, remedy = (
        f"workspace_budget_gib = {options.workspace_budget_gib:g}",
        f"Set workspace_budget_gib to {enough:.3f}.",
    )
    return Violation("options", got, f"at least {enough:.3f}", remedy)


def _receive(options: Options, expected: str, enough: int) -> Violation:
    remedy = f"Set it to 0 or {enough}"
    if options.max_recv_token_num < enough:
        remedy += ", lower --max-num-batched-tokens, or accept lost rows with allow_token_drop"
    return Violation("options", f"max_recv_token_num = {options.max_recv_token_num}", expected, f"{remedy}.")


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
