"""Experts per token."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Cell, Limits, Numbers
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


def _outside(buffer: BufferFacts, cell: Cell[Numbers]) -> Broken | None:
    if buffer.num_topk in cell.value:
        return None
    remedy = "The model fixes it; take a profile that has it."
    return Broken("num_topk", str(buffer.num_topk), str(cell.value), cell.source, remedy)


@buffer_rule("created-topk")
def created_topk(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """What creation takes; the call may be stricter."""
    return _outside(buffer, limits.created_topk)


@call_rule("topk")
def topk(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """What the call takes."""
    return _outside(buffer, limits.topk)
