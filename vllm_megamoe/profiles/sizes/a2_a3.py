"""Memory of A2 and A3: the communicator's window, and the workspace that calls take from the torch allocator in turn.

A window has two halves of one size, each with the table of token counts and a reserve. A2 has room for received rows in
one half and for sent ones in the other; A3 packs rows and the rows that come back into one half only.

Source: op tiling arch22 (last part of the tiling function); the same in the 9.1.0 branch and in 2026-08.
"""

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.common import KIB, MIB, received_rows, round_up
from vllm_megamoe.profiles.use_cases import UseCase

# The table is sized for 128 experts on every rank, whatever the model has (op tiling arch22, MAX_EXPERT_PER_RANK).
EXPERTS_PER_RANK = 128
RESERVE = 10 * MIB


def token_counts(ep_world_size: int) -> int:
    """Bytes of `offsetTokenPerExpert`: an int32 per rank and global expert, the row rounded up to 128 entries."""
    return ep_world_size * round_up(ep_world_size * EXPERTS_PER_RANK + 1, 128) * 4


def record_space(hidden: int, quantised: bool) -> int:
    """Bytes that the window keeps for a dispatched row: bf16, or int8 with 512 bytes behind it for the scale."""
    return hidden + 512 if quantised else 2 * hidden


def least_half_a2(*, ep_world_size: int, rows: int, topk: int, hidden: int, received: int, quantised: bool) -> int:
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


SYNC_STATE = 512 * KIB


def least_half_a3(
    *, ep_world_size: int, rows: int, topk: int, hidden: int, quantised: bool, sync_state: int = SYNC_STATE
) -> int:
    """Bytes that one half (window in = window out) must have at least; the receive capacity does not enter.

    torch_api.txt ("Communicator and networking constraints", Atlas A3) and op tiling arch22 of 2026-08 keep 512 KiB of
    synchronisation state; the 9.1.0 branch keeps 512 bytes per rank only. The larger one holds for 9.1 as for 9.2. The
    source later than 2026-08 bounds the rows by 1024 (it permutes in pieces), which never asks for more: the older and
    stricter term stays.

    Args:
        sync_state: least bytes of the flags; 0 gives the 9.1.0 branch's own figure.
        The others as for A2.
    """
    record = record_space(hidden, quantised)
    tensor = rows * topk * (record + hidden * 2 + (4 if quantised else 0))
    return token_counts(ep_world_size) + tensor + max(ep_world_size * 512, sync_state) + RESERVE


SYSTEM = 16 * MIB
# Vector cores enter the routing step's part; A2 and A3 dies have 40, 48 or 50. The largest stands for all.
VECTOR_CORES = 50


def received_row_bytes(profile: Profile, use_case: UseCase, hidden: int, intermediate_hidden: int) -> int:
    """Bytes of workspace for each received row: outputs and inputs of the GEMMs, and scales of integer weights.

    INT4 holds every output twice, for the two halves of the split int8 row.
    """
    integers = use_case is not UseCase.A16W16
    output = 2 * max(2 * intermediate_hidden, hidden)
    # A2 keeps the inputs of integer GEMMs as int8, A3 reserves bf16 always.
    input_bytes = 1 if integers and profile.product == "a2" else 2
    split = output if use_case is UseCase.A8W4_INT else 0
    return output + input_bytes * max(hidden, intermediate_hidden) + (8 if integers else 0) + split


def workspace_bytes(
    profile: Profile, buffer: BufferFacts, use_case: UseCase, intermediate_hidden: int, rows: int
) -> int:
    """The whole workspace; the larger of the main part and the routing step's, which run one after another."""
    received = received_rows(profile, buffer, rows)
    per_row = received_row_bytes(profile, use_case, buffer.hidden, intermediate_hidden)
    main = received * per_row + _small(profile, buffer, rows)
    return SYSTEM + max(main, _routing(buffer, use_case, rows))


def _small(profile: Profile, buffer: BufferFacts, rows: int) -> int:
    """Row indices, counts and prefix sums per rank and expert, 64 bytes of flags per rank."""
    ranks, experts = buffer.ep_world_size, buffer.experts_per_rank
    indices = round_up(rows, 256) * buffer.num_topk * 4
    if profile.product == "a2":
        counts = round_up(ranks * experts + 1, 128) * (ranks + 2) * 4
    else:
        counts = ranks * ranks * experts * 4 + ranks * (experts + 15) // 16 * 16 * 4
    return indices + counts + ranks * 64


def _routing(buffer: BufferFacts, use_case: UseCase, rows: int) -> int:
    """Sorting the routes: 32 bytes each, 16 MiB of its own, a float32 row per vector core where rows are quantised.

    The last term is there only where a row does not fit the core at once; it is counted always, 1.6 MB at most.
    """
    rows_of_cores = VECTOR_CORES * buffer.hidden * 4 if use_case is not UseCase.A16W16 else 0
    return rows * buffer.num_topk * 32 + VECTOR_CORES * 8 + 16 * MIB + rows_of_cores
