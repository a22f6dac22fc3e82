"""`vllm-megamoe doctor`: whether the environment has what serving needs."""

from typing import Annotated

import typer

from vllm_megamoe.cli import exit_codes
from vllm_megamoe.cli.doctor.environment import read_environment
from vllm_megamoe.cli.doctor.examine import examine
from vllm_megamoe.cli.show.doctor import show_report
from vllm_megamoe.cli.show.text import print_whole

EPILOG = """\
Example: vllm-megamoe doctor --json

Exit codes: 0 all that is needed is there; 1 something is missing or wrong, with the command that mends it; 2 wrong
usage.
"""


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False) -> None:
    """Look at the environment: what is there, what is missing, the command that mends it. Imports nothing heavy."""
    report = examine(read_environment())
    print_whole(report.model_dump_json(indent=2)) if json else show_report(report)
    raise typer.Exit(exit_codes.OK if report.ok else exit_codes.REFUSED)
