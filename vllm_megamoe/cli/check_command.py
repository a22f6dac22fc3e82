"""`vllm-megamoe check`: a checkpoint's experts through the operator, beside the numbers that they stand for."""

from pathlib import Path
from typing import Annotated

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli.plot import check_plot, draw_errors
from vllm_megamoe.cli.request import megamoe_options
from vllm_megamoe.cli.show.rows import print_whole
from vllm_megamoe.cli.show_command import Json, Layers

Checkpoint = Annotated[str | None, typer.Argument(help="Folder of a checkpoint, with its weights.", show_default=False)]

_AGAINST = "The unquantised original; without it the checkpoint's own numbers."
Against = Annotated[str | None, typer.Option(help=_AGAINST, show_default=False)]
UseCase = Annotated[str | None, typer.Option(help="auto, a16w16, a8w8-int, a8w4-int, a8w8-fp, a8w4-fp, a4w4-fp.")]
Requant = Annotated[str | None, typer.Option(help="strict, or allow for a lossy conversion.")]
Profile = Annotated[str | None, typer.Option(help="As for plan; by default VLLM_MEGAMOE_PROFILE, else none.")]
Tokens = Annotated[int, typer.Option(min=1, max=4096, help="Rows that each expert gets.")]
Plot = Annotated[Path | None, typer.Option(help="Draw errors over layers (.png, .svg, .pdf).", show_default=False)]
Backend = Annotated[str, typer.Option(help="cpu: the twin. cann: this machine's device beside it, no CHECKPOINT.")]
Report = Annotated[Path | None, typer.Option(help="File for the report of --backend cann.", show_default=False)]

EPILOG = """\
Examples:

vllm-megamoe check ./Qwen3-30B-A3B-w8a8 --against ./Qwen3-30B-A3B --layers 0-3

vllm-megamoe check ./Qwen3-30B-A3B --use-case a8w8-fp --requant allow --plot errors.png

vllm-megamoe check --backend cann

Exit codes: 0 no error is beyond what the formats explain; 1 one is, or a file is malformed; 2 wrong usage, or nothing
that can be run so.
"""


def check(
    checkpoint: Checkpoint = None,
    against: Against = None,
    use_case: UseCase = None,
    requant: Requant = None,
    profile: Profile = None,
    layers: Layers = None,
    tokens: Tokens = 32,
    plot: Plot = None,
    backend: Backend = "cpu",
    report: Report = None,
    json: Json = False,
) -> None:
    """Run a checkpoint's experts through the operator and compare: error per layer, worst expert, worst token.

    Reads one expert at a time; a large model takes hours, --layers takes some of it.
    """
    if backend not in ("cpu", "cann"):
        raise typer.BadParameter(f"{backend!r}; expected cpu or cann.", param_hint="--backend")
    if (backend == "cann") is (checkpoint is not None):
        expected = "none: the device is asked with data of its own" if checkpoint else "a folder"
        raise typer.BadParameter(f"{checkpoint}; expected {expected}.", param_hint="CHECKPOINT")
    if checkpoint is None:
        from vllm_megamoe.cli.device_check.command import REPORT
        from vllm_megamoe.cli.device_check.command import run as ask_device

        raise typer.Exit(ask_device(report or REPORT, json=json))
    options = {"use_case": use_case, "requant": requant, "profile": profile}
    given = megamoe_options(options)
    if plot is not None:
        check_plot(plot)
    from vllm_megamoe.cli.checkpoint.check_text import show
    from vllm_megamoe.cli.checkpoint.checking import check as run
    from vllm_megamoe.cli.checkpoint.opened import open_checkpoint
    from vllm_megamoe.plan.options import KEY, Options

    original = open_checkpoint(against, layers) if against is not None else None
    found = run(open_checkpoint(checkpoint, layers), original, Options.parse({KEY: given}), tokens)
    print_whole(found.model_dump_json(indent=2)) if json else show(found)
    if plot is not None and found.layers:
        draw_errors(found, plot)
    raise typer.Exit(cli.OK if found.holds else cli.REJECTED)
