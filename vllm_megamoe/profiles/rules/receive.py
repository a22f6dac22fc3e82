"""max_recv_token_num: rows that a rank can receive in a call, over all its experts."""

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts, CallFacts
from vllm_megamoe.profiles.limits import Limits
from vllm_megamoe.profiles.limits.sources import API, README
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules.rule import call_rule

_NAME = "max_recv_token_num"


@call_rule("receive-bound")
def receive_bound(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """950 takes no more than what can come."""
    bound = buffer.receive_bound(buffer.num_max_tokens_per_rank)
    upper = bound if limits.bounded_receive.value else None
    if buffer.max_recv_token_num >= 0 and (upper is None or buffer.max_recv_token_num <= upper):
        return None
    wanted = "at least 0" if upper is None else f"in [0, {upper}]: tokens x ranks x min(topk, experts per rank)"
    source = limits.bounded_receive.source
    return Broken(_NAME, str(buffer.max_recv_token_num), wanted, source, "Leave it at 0: the operator computes it.")


@call_rule("receive-int4")
def receive_int4(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """Combine of 9.1.0 on A3 counts INT4 rows twice, so half of the capacity is lost, the automatic one included."""
    factor = limits.receive_factor_int4.value
    if factor < 2 or call.routed.element1 != "INT4":
        return None
    least = factor * buffer.receive_bound(buffer.num_max_tokens_per_rank)
    if buffer.max_recv_token_num >= least:
        return None
    wanted = f"at least {least}: {factor} x tokens x ranks x min(topk, experts per rank); 0 is too little too"
    silent = "once half of the capacity is used, the rows of later experts come back as zeros"
    source = limits.receive_factor_int4.source
    return Broken(_NAME, str(buffer.max_recv_token_num), wanted, source, f"Create the buffer with {least}.", silent)


@call_rule("receive-overflow")
def receive_overflow(profile: Profile, limits: Limits, buffer: BufferFacts, call: CallFacts) -> Broken | None:
    """More rows than the capacity; seen once the ranks have met."""
    capacity, most = buffer.max_recv_token_num, max(call.received_rows, default=0)
    if capacity <= 0 or most <= capacity:
        return None
    rank = call.received_rows.index(most)
    silent = "it drops the rows beyond it, and expert_token_nums still counts them"
    if profile.is_950:
        silent = "its first GEMM waits for rows that never come: a hang, or an access out of bounds"
    wanted = f"at least {most}, the rows that rank {rank} receives in this call"
    source = f"{README}:501; {API}:308,439"
    return Broken(_NAME, str(capacity), wanted, source, "Create the buffer with more, or with 0 for all.", silent)
