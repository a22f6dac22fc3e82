"""What a device check found, as one JSON file to attach to a bug, and in short on the terminal."""

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from vllm_megamoe.cli.device_check.questions import NEITHER
from vllm_megamoe.cli.doctor.environment import Report as Doctor
from vllm_megamoe.cli.show.rows import make_console, print_whole


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(_Model):
    """One open question.

    Attributes:
        question, about: which.
        answer: the device's; where the ranks differ, both.
        expected: what the twin and the limits take.
        evidence: the numbers behind it, one line a rank.
    """

    question: str
    about: str
    answer: str
    expected: str
    evidence: tuple[str, ...]

    @property
    def is_expected(self) -> bool:
        """Whether the device does what we take it to do."""
        return self.answer == self.expected


class Agreement(_Model):
    """One use case beside the twin.

    Attributes:
        agrees: whether every token is within `bound` and the counts are equal.
        equal: whether all rows are equal bit for bit.
        rank, token: the worst token's place.
        error, bound: of its row, relative to it; no error where there is no finite number.
        problem: an error in place of rows, or counts that differ; empty where there is none.
    """

    use_case: str
    agrees: bool
    equal: bool
    rank: int
    token: int
    error: float | None
    bound: float
    problem: str


class DeviceReport(_Model):
    """The file.

    Attributes:
        schema_version: 1; raised when a field changes its meaning or goes away.
        holds: every answer is the expected one and every use case agrees.
        profile: product and operator revision, as found on this machine.
        about_profile: what the revision's name stands for.
        simulated: whether no device was there.
        operator: the keywords of the installed operator's two functions.
        answers, agreements: what was found.
        machine: what `vllm-megamoe doctor` says here.
    """

    schema_version: int = 1
    holds: bool
    profile: str
    about_profile: str
    simulated: bool
    operator: dict[str, tuple[str, ...]]
    answers: tuple[Answer, ...]
    agreements: tuple[Agreement, ...]
    machine: Doctor


def show(report: DeviceReport) -> None:
    """Print the answers, the use cases, and a sentence."""
    console = make_console()
    where = "SIMULATED, no device was asked" if report.simulated else "on this machine's NPUs"
    console.print(Text(f"{report.profile}, {where}. {report.about_profile}", style="bold"))
    table = Table.grid(padding=(0, 2))
    for answer in report.answers:
        known = answer.is_expected
        style = "green" if known else "red"
        said = answer.answer if known else f"{answer.answer}; expected: {answer.expected}"
        table.add_row(Text("ok" if known else "differs", style=style), answer.question, answer.about, said)
    for each in report.agreements:
        style = "green" if each.agrees else "red"
        error = "not finite" if each.error is None else f"{each.error:.1e}"
        text = "equal to the twin" if each.equal else f"worst token {each.token} of rank {each.rank}: {error}"
        table.add_row(Text("ok" if each.agrees else "mismatch", style=style), each.use_case, "", each.problem or text)
    console.print(table)
    print_whole(_sentence(report))


def _sentence(report: DeviceReport) -> str:
    if report.holds:
        return "The device does what the twin computes."
    mismatched = [each.use_case for each in report.agreements if not each.agrees]
    lines = []
    if mismatched:
        lines.append(f"MISMATCH in {', '.join(mismatched)}: no answer above explains it. Do not serve with it.")
    for answer in report.answers:
        if not answer.is_expected:
            unknown = " No answer that we know fits." if answer.answer == NEITHER else ""
            lines.append(
                f"{answer.question}: the device answers {answer.answer!r}, expected {answer.expected!r}.{unknown}"
            )
    return "\n".join([*lines, "Please attach the report file to an issue."])
