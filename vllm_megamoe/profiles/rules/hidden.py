"""Width of the rows."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Cell, Limits, Numbers
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


def _outside(buffer: BufferFacts, cell: Cell[Numbers]) -> Broken | None:
    if buffer.hidden in cell.value:
        return None
    larger = cell.value.at_least(buffer.hidden)
    remedy = "The operator does not take such wide rows." if larger is None else f"Pad with zeros to {larger}."
    return Broken("hidden", str(buffer.hidden), str(cell.value), cell.source, remedy)


@buffer_rule("created-hidden")
def created_hidden(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """What creation takes; the call may be stricter."""
    return _outside(buffer, limits.created_hidden)


@call_rule("hidden")
def hidden(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """What the call takes."""
    return _outside(buffer, limits.hidden)
