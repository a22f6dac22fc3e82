"""The environment on the terminal."""

from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.doctor.check import Report
from vllm_megamoe.cli.show.text import make_console, print_whole

_STYLES = {"ok": "green", "note": "yellow", "missing": "red", "wrong": "red"}


def show_report(report: Report) -> None:
    """Print what was found, then what mends it, as lines to copy."""
    console = make_console()
    table = Table.grid(padding=(0, 2))
    for check in report.checks:
        table.add_row(Text(check.state, style=_STYLES[check.state]), check.name, check.found)
    console.print(table)
    mends = [check for check in report.checks if check.remedy]
    for check in mends:
        console.print(Text(f"\n{check.name} ({check.state}):", style=_STYLES[check.state]))
        print_whole(f"  {check.remedy}")
    lane = "an Ascend host" if report.lane == "ascend" else "vLLM's CPU platform"
    sentence = f"All that {lane} needs is here." if report.ok else f"{lane} needs what is missing or wrong above."
    console.print(Text(f"\n{sentence[0].upper()}{sentence[1:]}", style="green" if report.ok else "red"))
