"""The workspace of a call on A2 and A3, from the torch allocator; layers share it one after another.

Source: op tiling arch22 (last part of the tiling function); the same in the 9.1.0 branch and in 2026-08.
"""

from vllm_megamoe.profiles.call_facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.received import received_rows
from vllm_megamoe.profiles.sizes.units import MIB, round_up
from vllm_megamoe.profiles.use_cases import UseCase

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
