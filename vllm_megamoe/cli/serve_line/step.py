"""One change to a command line."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Step(BaseModel):
    """What to do with a command line, and why.

    Attributes:
        action: `drop` what is there, `add` what is missing, `set` another value.
        what: the flag or variable as it is written, with its value where it has one.
        why: a sentence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["drop", "add", "set"]
    what: str
    why: str
