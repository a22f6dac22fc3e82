"""How many tokens a rank brings."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits, Numbers
from vllm_megamoe.profiles.limits.sources import API, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import buffer_rule, call_rule


@buffer_rule("max-tokens")
def max_tokens(profile: Profile, limits: Limits, buffer: BufferFacts) -> Broken | None:
    """The buffer's bound; 0, which the tiling reads as "as many as come", does not get past creation."""
    cell = limits.max_tokens
    allowed = Numbers(1, cell.value)
    if buffer.num_max_tokens_per_rank in allowed:
        return None
    value = str(buffer.num_max_tokens_per_rank)
    remedy = "Bring fewer tokens per call (vLLM: --max-num-batched-tokens), in several calls if need be."
    if buffer.num_max_tokens_per_rank < 1:
        remedy = "Give the most tokens that any rank brings to a call."
    return Broken("num_max_tokens_per_rank", value, str(allowed), cell.source, remedy)


@call_rule("rows")
def rows(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Tokens of one call; a rank without any must bring a dummy."""
    most = buffer.num_max_tokens_per_rank
    if 1 <= call.rows <= most:
        return None
    remedy = "Split the batch, or make a larger buffer."
    if call.rows < 1:
        remedy = "An idle rank brings one dummy token, on every product."
    source = f"{API}:435,438,454; {README}:567"
    return Broken("x: rows", str(call.rows), f"in [1, {most}], num_max_tokens_per_rank of the buffer", source, remedy)


@call_rule("rows-full")
def rows_full(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """950 in 9.1.0 takes full buffers only."""
    most = buffer.num_max_tokens_per_rank
    if limits.rows.value != "full" or call.rows == most:
        return None
    wanted = f"{most}, num_max_tokens_per_rank of the buffer: no other number"
    remedy = "Fill up with dummy tokens, and drop their rows of y."
    return Broken("x: rows", str(call.rows), wanted, limits.rows.source, remedy)


@call_rule("rows-alike")
def rows_alike(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """A2 and A3 derive offsets in the other ranks' windows from this rank's own count; seen once the ranks have met."""
    if limits.rows.value == "any" or len(set(call.rows_of_ranks)) <= 1:
        return None
    value = ", ".join(str(count) for count in call.rows_of_ranks) + " on ranks 0, 1, ..."
    silent = "" if limits.rows.value == "full" else "it computes wrong rows of y on all ranks"
    remedy = "Fill up with dummy tokens, so that every rank brings the same number."
    return Broken("x: rows", value, "the same number on all ranks", limits.rows.source, remedy, silent)
