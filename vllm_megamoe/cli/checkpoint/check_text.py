"""A CheckReport or a ConvertReport on the terminal: one line for each layer, and below what is beyond its bound."""

from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.checkpoint.schema import OWN, CheckReport, ConvertReport, LogprobsReport
from vllm_megamoe.cli.checkpoint.show_text import print_problems
from vllm_megamoe.cli.show.rows import make_console, size
from vllm_megamoe.profiles.losses import OUTPUT
from vllm_megamoe.profiles.use_cases import UseCase


def show(report: CheckReport) -> None:
    """Print it."""
    console = make_console(width=120)
    console.print(Text(f"{report.model}, against {report.against}", style="bold"))
    console.print(f"Each expert got {report.activations}.")
    table = Table()
    for column in (
        "layer",
        "from",
        "run as",
        "weights off",
        "explained",
        "output off",
        "explained",
        "worst expert",
        "worst token",
    ):
        table.add_column(column, overflow="fold")
    for layer in report.layers:
        table.add_row(
            f"{layer.layer}{' (draft)' if layer.draft else ''}{', shared' if layer.part == 'shared' else ''}",
            layer.format,
            layer.use_case,
            f"{layer.weight_rel_err:.3%}",
            f"{layer.weight_bound:.3%}",
            f"{layer.output_rel_err:.2%}",
            f"{layer.output_bound:.2%}",
            f"{layer.worst_expert} ({layer.worst_expert_rel_err:.2%})",
            f"{layer.worst_token} ({layer.worst_token_rel_err:.2%})",
            style="red" if layer.excess else None,
        )
    if report.layers:
        console.print(table)
    for note in report.notes:
        console.print(Text(f"Note: {note}", style="yellow"))
    for layer in report.layers:
        for sentence in layer.excess:
            console.print(Text(f"{layer.name}, {sentence}", style="red"))
    if report.problems:
        print_problems(console, report.problems)
    elif report.holds:
        console.print(Text("Nothing is beyond what the formats explain.", style="green"))
    else:
        console.print(Text(f"\nBeyond what the formats explain. {_REMEDY[report.against == OWN]}", style="bold red"))


_REMEDY = {
    False: "Is --against the original of this checkpoint? Tools that move scales into norms, or rotate weights, leave "
    "none to compare with. Else copy the checkpoint anew, or quantise again.",
    True: "Report this with the name of the checkpoint: a conversion of this package is wrong.",
}
"""By whether the checkpoint was judged by its own numbers."""


def print_logprobs(report: LogprobsReport) -> None:
    """A line for each prompt; the worst one below."""
    console = make_console(width=120)
    console.print(
        Text(f"{report.model}, served as {report.use_case}, against its own numbers in float32", style="bold")
    )
    table = Table()
    for column in ("prompt", "tokens", "logprobs off (rms)", "worst token", "perplexity", "meant", "another best"):
        table.add_column(column, overflow="fold")
    for one in report.prompts:
        table.add_row(
            f"{one.number}: {one.prompt}",
            str(one.tokens),
            f"{one.rms:.4f}",
            f"{one.worst_token} ({one.worst_difference:+.4f})",
            f"{one.perplexity_served:.3f}",
            f"{one.perplexity_meant:.3f}",
            str(one.other_best),
        )
    console.print(table)
    worst = report.prompts[report.worst]
    console.print(f"Worst prompt: {worst.number}, token {worst.worst_token}: {worst.prompt!r}")


def print_converted(report: ConvertReport) -> None:
    """What was written, and what each layer lost."""
    console = make_console(width=120)
    table = Table()
    for column in ("layer", "from", "to", "hidden x intermediate", "lost of weights' rms", "bytes", "file"):
        table.add_column(column, overflow="fold")
    for layer in report.layers:
        table.add_row(
            f"{layer.layer}{' (draft)' if layer.draft else ''}{', shared' if layer.part == 'shared' else ''}",
            layer.format,
            layer.use_case,
            f"{layer.hidden} x {layer.intermediate_hidden}",
            f"{layer.weight_rel_err:.3%}" if layer.weight_rel_err else "nothing",
            size(layer.bytes),
            f"{_files(layer.files)}{' (before)' if layer.resumed else ''}",
        )
    console.print(table)
    for case in sorted({layer.use_case for layer in report.layers if layer.weight_rel_err}):
        console.print(f"A layer's output as {case}: off by {OUTPUT[UseCase(case)]} of its rms with Gaussian weights.")
    if any(layer.weight_rel_err for layer in report.layers):
        console.print("These layers' own: vllm-megamoe check TARGET --against SOURCE")
    console.print(f"{report.target}: {size(report.bytes)}. Serve it with: vllm serve {report.target}")


def _files(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
