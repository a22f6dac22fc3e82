"""Profiles side by side."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.report.schema import ComparisonReport, GroupReport, PlanReport
from vllm_megamoe.cli.show.rows import violation_text
from vllm_megamoe.cli.show.text import make_console, size, sizes


def show_comparison(report: ComparisonReport) -> None:
    """Print one column per profile, and below the rules that each violates."""
    console = make_console(width=160)
    console.print(Text(report.model, style="bold"))
    plans = report.profiles
    if not any(plan.moe_layers for plan in plans):
        console.print(plans[0].summary)
        return
    table = Table()
    table.add_column("")
    for plan in plans:
        table.add_column(plan.profile)
    columns = [_column(plan) for plan in plans]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    for plan in plans:
        for number, violation in enumerate(plan.violations, 1):
            if number == 1:
                console.print(Text(f"\n{plan.profile}", style="bold"))
            console.print(f"  {number}. {violation_text(violation)}")


def _column(plan: PlanReport) -> dict[str, str]:
    groups = [group for group in plan.groups if group.runs == "mega_moe"]
    memory, wire, engine = plan.memory, plan.wire, plan.engine
    return {
        "holds": "yes" if plan.holds else f"no ({len(plan.violations)})",
        "ranks": str(engine.ep_size) if engine else "-",
        "use case": _each(f"{group.use_case}" + (f" ({group.loss})" if group.loss else "") for group in groups),
        "activation": _each(group.activation.text for group in groups if group.activation),
        "shared experts": _each(group.shared_experts.mode for group in groups if group.shared_experts),
        "padding": _each(_padding(group) for group in groups),
        "rows a call": _each(str(group.rows.per_call) for group in groups if group.rows),
        "EP sizes": sizes(plan.ep_sizes),
        "weights": size(memory.weights) if memory else "-",
        "window": size(memory.window) if memory else "-",
        "workspace": size(memory.workspace) if memory else "-",
        "HCCL_BUFFSIZE": str(plan.hccl_buffsize_mb) if plan.hccl_buffsize_mb is not None else "-",
        "dispatch": size(wire.dispatch) if wire else "-",
        "combine": size(wire.combine) if wire else "-",
        "combine, deduplicated": size(wire.combine_with_dedup) if wire and wire.combine_with_dedup else "-",
    }


def _each(texts: Iterable[str]) -> str:
    found = list(dict.fromkeys(texts))
    return ", ".join(found) if found else "-"


def _padding(group: GroupReport) -> str:
    return "none" if group.padding is None else f"+{group.padding.overhead:.0%}"
