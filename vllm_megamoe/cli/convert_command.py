"""`vllm-megamoe convert`: a checkpoint in the package's own format, whose loading is a copy."""

import difflib
from pathlib import Path
from typing import Annotated, get_args

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli.check_command import Profile
from vllm_megamoe.cli.request import megamoe_options
from vllm_megamoe.cli.show.rows import print_whole
from vllm_megamoe.cli.show_command import Json, Layers
from vllm_megamoe.plan.options import UseCaseOption

Source = Annotated[str, typer.Argument(help="Folder of a checkpoint, with its weights.", show_default=False)]
Target = Annotated[Path, typer.Argument(help="New folder, or that of the same conversion that was ended.")]
UseCase = Annotated[
    str, typer.Option(help="a16w16, a8w8-int, a8w4-int, a8w8-fp, a8w4-fp, a4w4-fp; naming it consents.")
]
MxScale = Annotated[str, typer.Option(help="floor as the operator's own, or ceil, which never saturates (MX).")]

Shared = Annotated[bool, typer.Option("--shared", help="Convert shared experts too, for a product that fuses them.")]
SharedUseCase = Annotated[
    str | None, typer.Option(help="What they become where not --use-case; implies --shared.", show_default=False)
]
_RANKS = "Files for each rank of an expert-parallel group of this size, so that a rank reads its own."
Ep = Annotated[int | None, typer.Option(min=1, help=_RANKS, show_default=False)]
Tp = Annotated[int | None, typer.Option(min=1, help="The same without data parallelism.", show_default=False)]

EPILOG = """\
Examples:

vllm-megamoe convert ./Qwen3-30B-A3B ./Qwen3-30B-A3B-a8w8 --use-case a8w8-int --profile a3@9.1 --ep 16

vllm-megamoe convert ./GLM-5 ./GLM-5-fp4 --use-case a8w4-fp --shared-use-case a8w8-fp --profile 950@9.2

--layers converts some layers; the others stay as they are. With --profile, experts are padded for that product.

Exit codes: 0 converted; 1 a file of the source is malformed; 2 wrong usage, or nothing that can be converted so.

After a failure or Ctrl-C the same command goes on where it ended; until it is done the folder has no config.json.
"""


def convert(
    source: Source,
    target: Target,
    use_case: UseCase,
    profile: Profile = None,
    layers: Layers = None,
    mx_scale: MxScale = "floor",
    shared: Shared = False,
    shared_use_case: SharedUseCase = None,
    ep: Ep = None,
    tp: Tp = None,
    json: Json = False,
) -> None:
    """Convert a checkpoint's experts into the package's own format, which is loaded without a conversion.

    Keeps tokenizer, config and all other tensors byte for byte; one expert at a time for each core; prints each loss.
    """
    _named(use_case, "--use-case")
    given = megamoe_options({"use_case": use_case, "requant": "allow", "profile": profile})
    if mx_scale not in ("floor", "ceil"):
        raise typer.BadParameter(f"{mx_scale!r}; expected floor or ceil.", param_hint="--mx-scale")
    if ep and tp and ep % tp:
        raise typer.BadParameter(f"{ep} with --tp {tp}; expected a multiple of it (TP x DP).", param_hint="--ep")
    if shared_use_case is not None:
        _named(shared_use_case, "--shared-use-case")
    from vllm_megamoe.cli.checkpoint.check_text import print_converted
    from vllm_megamoe.cli.checkpoint.convert_layer import Choices
    from vllm_megamoe.cli.checkpoint.converting import convert as run
    from vllm_megamoe.cli.checkpoint.opened import open_checkpoint
    from vllm_megamoe.cli.checkpoint.show_text import print_problems
    from vllm_megamoe.cli.show.rows import make_console
    from vllm_megamoe.plan.options import KEY, Options
    from vllm_megamoe.profiles.use_cases import UseCase as Case

    chosen = shared_use_case or (use_case if shared else None)
    opened = open_checkpoint(source, layers)
    if opened.survey.problems:
        print_problems(make_console(), [str(problem) for problem in opened.survey.problems])
        raise typer.Exit(cli.REJECTED)
    choices = Choices("ceil" if mx_scale == "ceil" else "floor", Case(chosen) if chosen else None, ep or tp or 1)
    report = run(opened, target, Options.parse({KEY: given}), choices)
    print_whole(report.model_dump_json(indent=2)) if json else print_converted(report)


def _named(use_case: str, flag: str) -> None:
    """Raises: typer.BadParameter: `auto`, or a name that is none; only a name is consent."""
    names = [name for name in get_args(UseCaseOption) if name != "auto"]
    if use_case not in names:
        near = difflib.get_close_matches(use_case, names, 1, 0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(
            f"{use_case!r}; expected the use case by name: {', '.join(names)}.{hint}", param_hint=flag
        )
