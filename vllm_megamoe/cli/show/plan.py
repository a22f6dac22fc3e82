"""A report on the terminal: one plan, or profiles side by side."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.report.schema import ComparisonReport, GroupReport, PlanReport
from vllm_megamoe.cli.show.fit import bound_rows, fit_rows
from vllm_megamoe.cli.show.rows import group_rows, make_console, print_whole, size, size_rows, sizes, violation_text


def show_plan(report: PlanReport) -> None:
    """Print a report: the answer first, then the table, then what is wrong, then the line to copy."""
    console = make_console()
    console.print(Text(_heading(report), style="bold"))
    console.print(Text(report.summary, style="green" if report.holds else "red"))
    if report.engine is not None:
        console.print(_engine(report))
        console.print(_table(report))
    for line in report.explained:
        console.print(Text(f"  {line}"))
    for note in report.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    for number, violation in enumerate(report.violations, 1):
        if number == 1:
            console.print(Text("\nViolated rules", style="bold"))
        console.print(f"  {number}. {violation_text(violation)}")
    for number, step in enumerate(report.corrections, 1):
        if number == 1:
            console.print(Text("\nThe command line", style="bold"))
        console.print(f"  {step.action:4} {step.what}\n       {step.why}")
    if report.command is not None:
        where = "" if report.in_vllm else ", where vLLM has this architecture (see the note above)"
        title = f"Serve it with{where}" if report.holds else "The corrected line, which still violates the rules above"
        console.print(Text(f"\n{title}", style="bold"))
        print_whole(report.command)
    elif report.corrections == () and report.moe_layers and report.holds is False:
        console.print(Text("\nNo command line is printed while rules are violated.", style="dim"))


def _heading(report: PlanReport) -> str:
    parts = [report.architecture] if report.architecture else []
    if report.num_layers:
        parts.append(f"{report.num_layers} layers")
    if report.moe_layers:
        drafts = sum(group.count for group in report.groups if group.draft)
        extra = f" and {drafts} draft" if drafts else ""
        parts.append(f"{report.moe_layers - drafts} with experts{extra}")
    parts += [f"{each.label}{'' if each.loads else ' (cannot be read)'}" for each in report.formats]
    return f"{report.model}: {', '.join(parts)}" if parts else report.model


def _engine(report: PlanReport) -> str:
    engine = report.engine
    if engine is None:
        return ""
    stages = f", pipeline parallel {engine.pipeline_parallel}" if engine.pipeline_parallel > 1 else ""
    chosen = ", chosen here: give --tp and --dp for others" if engine.chosen_here and engine.ep_size > 1 else ""
    return (
        f"Planned for tensor parallel {engine.tensor_parallel}, data parallel {engine.data_parallel}{stages}{chosen}; "
        f"{engine.dtype}, {engine.max_num_batched_tokens} tokens a step."
    )


def _table(report: PlanReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    dense = report.num_layers - sum(group.count for group in report.groups if not group.draft)
    if dense > 0:
        table.add_row(f"{dense} other layers", "vLLM's, as without the plugin")
    for group in report.groups:
        for name, text in group_rows(group):
            table.add_row(name, text)
    for name, text in size_rows(report):
        table.add_row(name, text)
    if report.fit is not None:
        for name, text in fit_rows(report.fit):
            table.add_row(name, text)
    if report.bounds is not None:
        for name, text in bound_rows(report.bounds):
            table.add_row(name, text)
    return table


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
        "use case": _each(f"{group.use_case}" + (" (lossy)" if group.loss else "") for group in groups),
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
