"""The lines of a plan's table as (name, text) pairs, and numbers as people read them.

The single and the comparing table share both; the console takes text as it is.
"""

import os
import sys
from collections.abc import Iterator

from rich.console import Console

from vllm_megamoe.cli.report.schema import GroupReport, PlanReport, ViolationReport, WireReport
from vllm_megamoe.profiles.losses import told
from vllm_megamoe.profiles.use_cases import UseCase

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def make_console(width: int = 100) -> Console:
    """A console on standard output. Brackets in texts are no markup.

    Args:
        width: of lines where there is neither a terminal nor COLUMNS.
    """
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=False, highlight=False, emoji=False, width=None if known else width)


def print_whole(line: str) -> None:
    """Print a line to copy: neither wrapped nor coloured, whatever the terminal's width."""
    sys.stdout.write(f"{line}\n")


def size(number: int) -> str:
    """`1.50 GiB`, `96.0 MiB`, `14.0 KiB`, `512 B`."""
    for unit, factor in _UNITS:
        if number >= factor:
            return f"{number / factor:.2f} {unit}" if unit == "GiB" else f"{number / factor:.1f} {unit}"
    return f"{number} B"


def sizes(numbers: tuple[int, ...]) -> str:
    """`2, 4, 8`, or `none`; a long run of them is shortened."""
    if not numbers:
        return "none"
    if len(numbers) > 12:
        return f"{', '.join(map(str, numbers[:8]))}, ... {numbers[-1]} ({len(numbers)} sizes)"
    return ", ".join(map(str, numbers))


Row = tuple[str, str]

_SHORT = 24
_PADDED = {"own": "as many as there are", "dp_max": "the largest rank's number", "num_max": "that number always"}


def group_rows(group: GroupReport) -> Iterator[Row]:
    """What runs where in layers that are alike."""
    draft = " (draft)" if group.draft else ""
    draft = " (draft, own communicator)" if group.communicator == "draft" else draft
    short = len(group.layers) <= _SHORT
    name = f"layers {group.layers}{draft}" if short else f"{group.count} layers{draft}"
    if group.runs == "rejected":
        yield name, f"not planned, experts are {group.format}"
    else:
        yield name, f"mega_moe as {group.use_case}, from {group.format}{', lossy' if group.loss else ''}"
        if group.loss and group.use_case is not None:
            yield "  loss", told(group.loss, UseCase(group.use_case))
    if not short:
        yield "  numbers", group.layers
    experts = f"{group.num_experts} ({group.experts_per_rank} on a rank), topk {group.topk}"
    yield "  experts", f"{experts}, hidden {group.hidden}, intermediate_hidden {group.intermediate_hidden}"
    if group.activation is not None:
        yield "  activation", group.activation.text
    if group.shared_experts is not None:
        yield "  shared experts", _shared(group)
    if group.runs == "mega_moe":
        yield "  padding", _padding(group)
    if group.rows is not None:
        rows = group.rows
        calls = "1 call" if rows.calls == 1 else f"{rows.calls} calls"
        padded = f"padded to {_PADDED[rows.padded_to]}"
        yield "  rows", f"{rows.per_step} a step and rank, in {calls} of {rows.per_call}, {padded}"


def _shared(group: GroupReport) -> str:
    shared = group.shared_experts
    if shared is None or shared.mode == "none":
        return "none"
    if shared.mode == "fused":
        other = f", as {shared.use_case}" if shared.use_case != group.use_case else ""
        return f"in the operator's call, as {shared.pieces} of the routed width{other}"
    return f"on vLLM's own path: {shared.reason}"


def _padding(group: GroupReport) -> str:
    padding = group.padding
    if padding is None:
        return "none"
    changed = [
        f"{name} {getattr(group, name)} -> {getattr(padding, name)}"
        for name in ("hidden", "intermediate_hidden")
        if getattr(group, name) != getattr(padding, name)
    ]
    return f"{', '.join(changed)}: +{padding.overhead:.0%} weights and FLOPs, {size(padding.bytes_per_rank)} a rank"


def size_rows(report: PlanReport) -> Iterator[Row]:
    """EP sizes, memory, wire."""
    yield "legal EP sizes", sizes(report.ep_sizes)
    if report.memory is not None:
        memory = report.memory
        yield (
            "operator on a rank",
            (f"weights {size(memory.weights)}, window {size(memory.window)}, workspace {size(memory.workspace)}"),
        )
    if report.hccl_buffsize_mb is not None:
        yield "HCCL_BUFFSIZE", f"at least {report.hccl_buffsize_mb} (MB, one half of the window)"
    if report.wire is not None:
        yield from wire_rows(report.wire)


def wire_rows(wire: WireReport) -> Iterator[Row]:
    """Bytes of a token in a MoE layer, and what the two modes would make of them."""
    moved = f"dispatch {size(wire.dispatch)}, combine {size(wire.combine)}"
    yield "wire, token and layer", f"{moved}; {wire.remote_share:.0%} of it leaves the rank"
    forwarded = wire.dispatch_with_router_weights
    yield (
        "  router weights forwarded",
        (
            "the product has no topk_weights_type=1"
            if forwarded is None
            else f"dispatch {size(wire.dispatch_without_router_weights)} without, {size(forwarded)} with"
        ),
    )
    merged, worst = wire.combine_with_dedup, wire.combine_with_dedup_worst
    yield (
        "  combine deduplicated",
        (
            "the product has no combine_comm_mode=1"
            if merged is None or worst is None
            else f"{size(wire.combine_without_dedup)} without, {size(merged)} with (at worst {size(worst)})"
        ),
    )


def violation_text(violation: ViolationReport) -> str:
    """A violated rule as sentences."""
    expected = f"; expected {violation.expected}." if violation.expected else ""
    return f"{violation.where}: {violation.got}{expected} {violation.remedy}".strip()
