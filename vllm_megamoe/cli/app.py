"""The console script."""

import functools
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import typer

from vllm_megamoe import cli
from vllm_megamoe.cli.check_command import EPILOG as CHECK_EPILOG
from vllm_megamoe.cli.check_command import check
from vllm_megamoe.cli.convert_command import EPILOG as CONVERT_EPILOG
from vllm_megamoe.cli.convert_command import convert
from vllm_megamoe.cli.doctor_command import EPILOG as DOCTOR_EPILOG
from vllm_megamoe.cli.doctor_command import doctor
from vllm_megamoe.cli.plan_command import EPILOG as PLAN_EPILOG
from vllm_megamoe.cli.plan_command import plan
from vllm_megamoe.cli.show_command import EPILOG as SHOW_EPILOG
from vllm_megamoe.cli.show_command import show
from vllm_megamoe.errors import MegaMoeError

NAME = "vllm-megamoe"

app = typer.Typer(
    name=NAME,
    help="Serve MoE models through the fused Ascend operator mega_moe: plan first, then serve. No vLLM is needed here.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _saying(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose errors of ours are a sentence and exit code 2, and whose interruption is one and 130.

    Ctrl-C inside an import leaves half a module behind, and what comes out is at times an error of its user (torch
    goes on without numpy); after Ctrl-C any error means that.
    """

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except MegaMoeError as error:
            typer.echo(f"{NAME}: {error}", err=True)
            raise typer.Exit(cli.BAD_INPUT) from None
        except KeyboardInterrupt as stop:
            raise _interrupted(*map(str, stop.args)) from None
        except Exception as error:
            if not _stops or isinstance(error, typer.Exit):
                raise
            raise _interrupted() from None

    return run


app.command(epilog=PLAN_EPILOG, no_args_is_help=True)(_saying(plan))
app.command(epilog=SHOW_EPILOG, no_args_is_help=True)(_saying(show))
app.command(epilog=CHECK_EPILOG, no_args_is_help=True)(_saying(check))
app.command(epilog=CONVERT_EPILOG, no_args_is_help=True)(_saying(convert))
app.command(epilog=DOCTOR_EPILOG)(_saying(doctor))


_stops: list[int] = []
"""Each Ctrl-C that came."""


def _interrupted(*words: str) -> typer.Exit:
    typer.echo(f"{NAME}: {'; '.join(['interrupted', *words])}", err=True)
    return typer.Exit(cli.INTERRUPTED)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _stops.append(number)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where Ctrl-C is ignored, as under nohup
        signal.signal(signal.SIGINT, _stop)
    app(prog_name=NAME)
