"""A ShowReport on the terminal: layers that are alike as one line, scales, products, and what is wrong."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.checkpoint.schema import LayerReport, RunReport, ShowReport
from vllm_megamoe.cli.show.rows import make_console, size
from vllm_megamoe.plan.screen import number_runs
from vllm_megamoe.profiles.losses import told
from vllm_megamoe.profiles.use_cases import UseCase


def show(report: ShowReport) -> None:
    """Print it."""
    console = make_console(width=120)
    heading = f"{report.model}: {report.architecture}, {len(report.layers)} layers with experts"
    console.print(Text(f"{heading}, {size(report.bytes)} in {report.files} file(s)", style="bold"))
    groups = _alike(report.layers)
    if groups:
        console.print(_layers(groups))
        _scales(console, groups)
        console.print(_products(groups))
    for note in report.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    print_problems(console, report.problems)


def print_problems(console: Console, problems: Sequence[str]) -> None:
    """What is malformed, numbered, or that nothing is."""
    if not problems:
        console.print(Text("Nothing is malformed.", style="green"))
        return
    console.print(Text("\nMalformed", style="bold red"))
    for number, problem in enumerate(problems, 1):
        console.print(f"  {number}. {problem}")


def _alike(layers: Iterable[LayerReport]) -> list[list[LayerReport]]:
    found: dict[object, list[LayerReport]] = {}
    for layer in layers:
        key = layer.model_copy(update={"name": "", "layer": 0, "scales": ()})
        found.setdefault(repr(key), []).append(layer)
    return list(found.values())


def _name(group: Sequence[LayerReport]) -> str:
    numbers = number_runs(layer.layer for layer in group) or group[0].name
    return f"{numbers} (draft)" if group[0].draft else numbers


def _layers(groups: Sequence[Sequence[LayerReport]]) -> Table:
    table = Table(title="Experts", title_justify="left")
    for column in ("layers", "format", "experts", "hidden x intermediate", "tensors", "a layer", "an expert", "shared"):
        table.add_column(column, justify="right" if column in ("a layer", "an expert") else "left")
    for group in groups:
        first = group[0]
        parts = "\n".join(f"{part.name} {part.dtype}" for part in first.parts)
        shared = "none" if first.shared is None else f"{first.shared.format}\n{size(first.shared.bytes)}"
        table.add_row(
            _name(group),
            f"{first.label}\n{first.naming}",
            str(first.num_experts),
            f"{first.hidden} x {first.intermediate_hidden}",
            parts,
            size(first.bytes),
            size(first.bytes_per_expert),
            shared,
        )
    return table


def _scales(console: Console, groups: Sequence[Sequence[LayerReport]]) -> None:
    table = Table(title="Scales", title_justify="left")
    for column in ("layers", "part", "least", "most", "where"):
        table.add_column(column)
    for group in groups:
        parts = dict.fromkeys(scale.part for layer in group for scale in layer.scales)
        for part in parts:
            found = [scale for layer in group for scale in layer.scales if scale.part == part]
            least, most = min(found, key=lambda scale: scale.least), max(found, key=lambda scale: scale.most)
            where = f"{least.least_in}\n{most.most_in}"
            table.add_row(_name(group), part, f"{least.least:.4g}", f"{most.most:.4g}", where)
    if table.row_count:
        console.print(table)


def _products(groups: Sequence[Sequence[LayerReport]]) -> Table:
    """A row for each product; those of which the same is to be said share one."""
    table = Table(title="Run as", title_justify="left")
    table.add_column("profile")
    for group in groups:
        table.add_column(f"layers {_name(group)}")
    rows: dict[tuple[str, ...], list[str]] = {}
    for place, run in enumerate(groups[0][0].runs):
        rows.setdefault(tuple(_cell(group[0].runs[place]) for group in groups), []).append(run.profile)
    for cells, profiles in rows.items():
        table.add_row(", ".join(profiles), *cells)
    return table


def _cell(run: RunReport) -> str:
    if run.use_case is None:
        return f"refused: {run.refused}"
    loss = f"lossy: {told(run.loss, UseCase(run.use_case))}" if run.loss else "exact"
    how = f"{run.use_case}, {loss}"
    return f"{how}, but refused: {run.refused}" if run.refused else how
