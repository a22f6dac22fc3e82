"""`vllm-megamoe check`: a checkpoint's experts through the operator, beside the numbers that they stand for.

With `--backend cann` and no checkpoint: this machine's NPUs beside the twin.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli.plot import check_plot, draw_errors
from vllm_megamoe.cli.request import megamoe_options
from vllm_megamoe.cli.show.rows import print_whole
from vllm_megamoe.cli.show_command import Json, Layers
from vllm_megamoe.errors import ConfigError

_CHECKPOINT = "Folder of a checkpoint, with its weights; none with --backend cann."
Checkpoint = Annotated[str | None, typer.Argument(help=_CHECKPOINT, show_default=False)]
_BACKEND = "cpu: a checkpoint on the twin. cann: two of this machine's NPUs beside the twin, a few minutes."
_REPORT = "The file that --backend cann writes."
Backend = Annotated[Literal["cpu", "cann"], typer.Option(help=_BACKEND)]
_AGAINST = "The unquantised original; without it the checkpoint's own numbers."
Against = Annotated[str | None, typer.Option(help=_AGAINST, show_default=False)]
UseCase = Annotated[str | None, typer.Option(help="auto, a16w16, a8w8-int, a8w4-int, a8w8-fp, a8w4-fp, a4w4-fp.")]
Requant = Annotated[str | None, typer.Option(help="strict, or allow for a lossy conversion.")]
Profile = Annotated[str | None, typer.Option(help="As for plan; by default VLLM_MEGAMOE_PROFILE, else none.")]
Tokens = Annotated[int, typer.Option(min=1, max=4096, help="Rows that each expert gets.")]
_LOGPROBS = "A text with a prompt a line: serve the checkpoint, compare with what its numbers mean."
Logprobs = Annotated[Path | None, typer.Option(help=_LOGPROBS, show_default=False)]
Plot = Annotated[Path | None, typer.Option(help="Draw errors over layers (.png, .svg, .pdf).", show_default=False)]

EPILOG = """\
Examples:

vllm-megamoe check ./Qwen3-30B-A3B-w8a8 --against ./Qwen3-30B-A3B --layers 0-3

vllm-megamoe check ./Qwen3-30B-A3B --use-case a8w8-fp --requant allow --plot errors.png

vllm-megamoe check ./Qwen3-30B-A3B-w8a8 --logprobs prompts.txt

vllm-megamoe check --backend cann

Exit codes: 0 no error is beyond what the formats explain; 1 one is, or a file is malformed; 2 wrong usage, or nothing
that can be run so. With --backend cann: 0 the device does what the twin computes; 1 it does not.
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
    logprobs: Logprobs = None,
    backend: Backend = "cpu",
    report_file: Annotated[Path, typer.Option("--report", help=_REPORT)] = Path("megamoe-device-report.json"),
    json: Json = False,
) -> None:
    """Run a checkpoint's experts through the operator and compare: error per layer, worst expert, worst token.

    Reads one expert at a time; a large model takes hours, --layers takes some of it.
    """
    options = {"use_case": use_case, "requant": requant, "profile": profile}
    if backend == "cann":
        named = [name for name, value in (*options.items(), ("CHECKPOINT", checkpoint), ("layers", layers)) if value]
        if named:
            raise ConfigError(
                f"check --backend cann: {', '.join(named)} given; expected none: it has a layer of its own."
            )
        from vllm_megamoe.cli.device_check.command import run as run_device

        raise typer.Exit(run_device(report_file, json=json))
    if checkpoint is None:
        raise ConfigError("check: no CHECKPOINT; expected the folder of one, or --backend cann on a host with NPUs.")
    given = megamoe_options(options)
    if logprobs is not None:
        if against or plot or layers:
            raise ConfigError(
                "--logprobs: serves the whole model; expected no --against, --plot or --layers beside it."
            )
        from vllm_megamoe.cli.checkpoint.check_text import print_logprobs
        from vllm_megamoe.cli.checkpoint.served import compare, read_prompts

        answers = compare(checkpoint, read_prompts(logprobs), given)
        print_whole(answers.model_dump_json(indent=2)) if json else print_logprobs(answers)
        return
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
