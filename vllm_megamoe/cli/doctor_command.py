"""`vllm-megamoe doctor`: every check of the environment in the order of the report, and the report on the terminal."""

from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from vllm_megamoe import cli
from vllm_megamoe.cli.doctor import ascend, packages, variables
from vllm_megamoe.cli.doctor.environment import Check, Environment, Report, fingerprint, read_environment
from vllm_megamoe.cli.doctor.model import Served, window
from vllm_megamoe.cli.doctor.packages import processor
from vllm_megamoe.cli.show.rows import make_console, print_whole
from vllm_megamoe.errors import ConfigError

CHECKS: tuple[Callable[[Environment], Iterator[Check]], ...] = (
    packages.python,
    packages.torch,
    packages.vllm,
    packages.stub,
    packages.foreign_builds,
    packages.plugin,
    packages.stack,
    packages.cann,
    ascend.npus,
    ascend.pairing,
    ascend.operator,
    ascend.one_build,
    ascend.works,
    processor,
    packages.kernels,
    variables.plugins,
    variables.hccl,
    variables.ours,
)


def examine(env: Environment, served: Served | None = None) -> Report:
    """Run every check on the environment, and those for a model if one is given.

    Raises:
        ConfigError: the model's config cannot be read.
    """
    found = tuple(check for each in CHECKS for check in each(env))
    if served is not None:
        found += tuple(window(env, served))
    return Report(
        ok=not any(check.hinders for check in found),
        lane="ascend" if env.is_ascend else "cpu",
        checks=found,
        fingerprint=fingerprint(env),
    )


_STYLES = {"ok": "green", "note": "yellow", "missing": "red", "wrong": "red"}


def show_report(report: Report) -> None:
    """Print what was found, then what fixes it, as lines to copy."""
    console = make_console()
    table = Table.grid(padding=(0, 2))
    for check in report.checks:
        table.add_row(Text(check.state, style=_STYLES[check.state]), check.name, check.found)
    console.print(table)
    fixes = [check for check in report.checks if check.remedy]
    for check in fixes:
        console.print(Text(f"\n{check.name} ({check.state}):", style=_STYLES[check.state]))
        print_whole(f"  {check.remedy}")
    lane = "an Ascend host" if report.lane == "ascend" else "vLLM's CPU platform"
    sentence = f"All that {lane} needs is here." if report.ok else f"{lane} needs what is missing or wrong above."
    console.print(Text(f"\nFingerprint, the same on every node of a deployment: {report.fingerprint}"))
    console.print(Text(f"\n{sentence[0].upper()}{sentence[1:]}", style="green" if report.ok else "red"))


EPILOG = """\
Examples: vllm-megamoe doctor --json

vllm-megamoe doctor --model ./Qwen3-235B-A22B-w8a8 --tp 16

Exit codes: 0 all that is needed is there; 1 something is missing or wrong, with the command that fixes it; 2 wrong
usage.
"""


Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Also plan this checkpoint (its folder or config.json) for this host.", metavar="MODEL"
    ),
]
Tp = Annotated[int | None, typer.Option("--tp", min=1, help="Tensor parallel size of that model's server.")]
Dp = Annotated[int | None, typer.Option("--dp", min=1, help="Data parallel size of it.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Its scheduler's bound of tokens per step [2048].")]


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    model: Model = None,
    tp: Tp = None,
    dp: Dp = None,
    max_num_batched_tokens: Tokens = None,
) -> None:
    """Look at the environment: what is there, what is missing, the command that fixes it. Imports nothing heavy.

    With --model also: whether the model's plan holds here, and the HCCL window that it needs beside the one it gets.
    """
    sizes = tp, dp, max_num_batched_tokens
    if model is None and sizes != (None, None, None):
        raise ConfigError("--tp, --dp and --max-num-batched-tokens are those of a model; give it with --model.")
    report = examine(read_environment(), None if model is None else Served(model, *sizes))
    print_whole(report.model_dump_json(indent=2)) if json else show_report(report)
    raise typer.Exit(cli.OK if report.ok else cli.REJECTED)
