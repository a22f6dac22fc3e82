"""The window of an A2 communicator: room for received rows in one half, for sent ones in the other."""

from vllm_megamoe.profiles.sizes.window_a2_a3 import EXPERTS_PER_RANK, RESERVE, record_space, token_counts


def least_half(*, ep_world_size: int, rows: int, topk: int, hidden: int, received: int, quantised: bool) -> int:
    """Bytes that one half (window in = window out) must have at least.

    One formula for both revisions. torch_api.txt ("Communicator and networking constraints", Atlas A2) and op tiling
    arch22 (CalcLeastCclBufferSize) of the 9.1.0 branch and of 2026-08 say the same; the source later than that bounds
    the rows of the send term by 1024, which never asks for more, so the older and stricter formula holds for 9.2 too.

    Args:
        ep_world_size: ranks.
        rows: tokens of a rank in a call (the tiling takes x.dim0; torch_api.txt num_max_tokens_per_rank).
        topk: experts per token.
        hidden: H.
        received: rows that a rank makes room for.
        quantised: whether rows travel as int8 (the tiling: integer weights; torch_api.txt: dispatch_quant_mode 2).
    """
    record = record_space(hidden, quantised)
    window_in = received * record + rows * topk * hidden * 2
    window_out = rows * topk * record + received * hidden * 2
    scales = received * 4 if quantised else 0
    flags = ep_world_size * (512 + EXPERTS_PER_RANK * 64 + 64)
    return token_counts(ep_world_size) + max(window_in, window_out) + scales + flags + RESERVE
