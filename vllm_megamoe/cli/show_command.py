"""`vllm-megamoe show`: a checkpoint's experts without vLLM: formats, sizes, scales, products, and what is malformed."""

from typing import Annotated

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli.show.rows import print_whole

Checkpoint = Annotated[str, typer.Argument(help="Folder of a checkpoint, with its weights.", show_default=False)]
Layers = Annotated[
    str | None, typer.Option("--layers", help="Numbers of layers: 0-3,7; all by default.", show_default=False)
]
Requant = Annotated[str, typer.Option(help="strict, or allow for lossy conversions in the table of products.")]
HeadersOnly = Annotated[bool, typer.Option("--headers-only", help="Do not read scales, which takes time.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

EPILOG = """\
Example: vllm-megamoe show ./DeepSeek-V3-w4a8 --layers 3-5

Exit codes: 0 shown, and nothing is malformed; 1 something is malformed, each named with file and tensor; 2 wrong usage,
or a file that cannot be read.
"""


def show(
    checkpoint: Checkpoint,
    layers: Layers = None,
    requant: Requant = "strict",
    headers_only: HeadersOnly = False,
    json: Json = False,
) -> None:
    """Show a checkpoint's experts: formats, dtypes, sizes, scale ranges, and what each product runs them as.

    Reads headers and scales, no other weight. Files that contradict each other are named with the tensor.
    """
    from vllm_megamoe.cli.checkpoint.contents import make_report
    from vllm_megamoe.cli.checkpoint.opened import open_checkpoint
    from vllm_megamoe.cli.checkpoint.show_text import show as show_report

    if requant not in ("strict", "allow"):
        raise typer.BadParameter(f"{requant!r}; expected strict or allow.", param_hint="--requant")
    report = make_report(open_checkpoint(checkpoint, layers), requant, headers_only)
    print_whole(report.model_dump_json(indent=2)) if json else show_report(report)
    raise typer.Exit(cli.REJECTED if report.problems else cli.OK)
