"""How many received rows a call makes room for, M' in the formulas."""

from vllm_megamoe.profiles.call_facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile


def received_rows(profile: Profile, buffer: BufferFacts, rows: int | None = None) -> int:
    """max_recv_token_num, or where it is 0 the operator's automatic bound.

    The bound is rows * ep_world_size * min(num_topk, experts of a rank). A2/A3 take the rows of the call for it
    (op tiling arch22, torch_api.txt: "num_tokens x ep_world_size x min(num_topk, num_experts_per_rank)"); 950 takes
    num_max_tokens_per_rank, which is equal on all ranks (op tiling arch35, operator_readme.txt maxRecvTokenNum).

    Args:
        rows: tokens of the call on each rank; None for num_max_tokens_per_rank.
    """
    if buffer.max_recv_token_num:
        return buffer.max_recv_token_num
    tokens = buffer.num_max_tokens_per_rank if rows is None or not profile.is_a2_a3 else rows
    return buffer.receive_bound(tokens)
