"""What a rule is: a small function that looks at plain facts and says what is wrong, if anything."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.profile import Profile

BufferCheck = Callable[[Profile, Limits, BufferFacts], Broken | None]
CallCheck = Callable[[Profile, Limits, BufferFacts, CallFacts], Broken | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the device.

    Attributes:
        id: its name, in tests and documents.
        at: whether creation of the buffer or a call breaks it, as on the device.
        check: what it says of the facts; None where they are right, or where the profile has no such rule. Without a
            call for a rule `at` a buffer.
        about: one sentence for readers.
    """

    id: str
    at: Literal["buffer", "call"]
    check: Callable[[Profile, Limits, BufferFacts, CallFacts | None], Broken | None]
    about: str


def buffer_rule(name: str) -> Callable[[BufferCheck], Rule]:
    """Make a rule of creation out of a function of profile, limits and buffer."""

    def make(check: BufferCheck) -> Rule:
        return Rule(name, "buffer", lambda profile, limits, buffer, call: check(profile, limits, buffer), _about(check))

    return make


def call_rule(name: str) -> Callable[[CallCheck], Rule]:
    """Make a rule of the call out of a function of profile, limits, buffer and call."""

    def make(check: CallCheck) -> Rule:
        def applied(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts | None) -> Broken | None:
            return None if call is None else check(profile, limits, buffer, call)

        return Rule(name, "call", applied, _about(check))

    return make


def _about(check: Callable[..., Broken | None]) -> str:
    return (check.__doc__ or "").strip().splitlines()[0]
