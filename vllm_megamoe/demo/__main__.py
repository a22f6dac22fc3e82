"""`python -m vllm_megamoe.demo`, which `make demo` runs: each step says what it does."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_megamoe.demo.story import Story
from vllm_megamoe.testing.process import HarnessError, Interrupted, interrupts, stop_all

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def demo(
    options: Annotated[list[str] | None, typer.Argument(help="more options for `vllm serve`, after `--`")] = None,
    cache: Annotated[Path, typer.Option(help="where checkpoint, baseline and logs are kept")] = Path(".cache/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="leave the server running at the end, until Ctrl-C")] = False,
) -> None:
    """Serve a small random MoE model through the fused operator, ask it, and compare it with vLLM's own MoE."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    interrupts.install()
    try:
        Story(console, cache.absolute(), options or [], keep).tell()
    except HarnessError as error:
        console.print(f"demo: FAILED: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except Interrupted as signal:
        console.print(f"demo: ended by {signal}; nothing was left running", highlight=False)
        raise typer.Exit(128 + signal.number) from signal
    finally:
        with interrupts.held():
            stop_all()


if __name__ == "__main__":
    app()
