"""The result of one look at the environment."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

State = Literal["ok", "note", "missing", "wrong"]


class Check(BaseModel):
    """One line of the report.

    Attributes:
        name: what was looked at.
        state: `ok`; `note` for what is worth knowing and hinders nothing; `missing` and `wrong` for what does.
        found: what is there.
        remedy: the command or the sentence that mends it, empty where nothing needs mending.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    state: State
    found: str
    remedy: str = ""

    @property
    def hinders(self) -> bool:
        """Whether the environment does not work because of it."""
        return self.state in ("missing", "wrong")


class Report(BaseModel):
    """What `doctor --json` prints.

    Attributes:
        schema_version: 1; raised when a field changes its meaning or goes away.
        ok: whether all that is needed is there.
        lane: `cpu`, or `ascend` where a package of that stack is installed.
        checks: one per thing looked at, in the order of the table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    ok: bool
    lane: Literal["cpu", "ascend"]
    checks: tuple[Check, ...]
