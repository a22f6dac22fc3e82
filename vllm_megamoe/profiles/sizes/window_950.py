"""The memory that a 950 buffer allocates for itself and registers with its peers, and the records that travel in it.

Layout, in order: synchronisation, routes, MX records of dispatched tokens, rows that come back (op kernel arch35).
"""

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.common import KIB, ceil_div, round_up


def dispatch_record(hidden: int, topk: int, *, with_weights: bool, elements_per_byte: int = 1) -> int:
    """Bytes of a token's record: codes (to 256), E8M0 scales, all to 32; then the router weights of its k experts.

    Source: op kernel arch35 (CalcQuantTokenScaleBytes), 9.1.0 without the weights. The host's size check counts one
    byte per element for FP4 too; the device packs two.
    """
    codes = round_up(hidden // elements_per_byte, 256)
    record = round_up(codes + ceil_div(hidden, 32), 32)
    return round_up(record + router_weights(topk), 32) if with_weights else record


def router_weights(topk: int) -> int:
    """Bytes that topk_weights_type=1 adds to a record: k float32, to 32."""
    return round_up(4 * topk, 32)


def combine_row(hidden: int, *, quantised: bool) -> int:
    """Bytes of a computed row on its way back: bf16, or MXFP8 codes (to 256) and an even count of scales, to 32.

    Source: op kernel arch35 (CalcCombineTokenBytes).
    """
    if not quantised:
        return 2 * hidden
    return round_up(round_up(hidden, 256) + round_up(ceil_div(hidden, 32), 2), 32)


SYNC = 60 * KIB


def least_bytes(profile: Profile, buffer: BufferFacts) -> int:
    """Bytes of the whole window that the tiling check demands; num_max_tokens_per_rank counts, not the call's rows.

    9.1: the 9.1.0 branch's tiling, which is the 2026-08 formula without forwarded weights and quantised combine.
    9.2: the larger of the 2026-08 formula (route bitmaps) and the later source's (route lists, a dump area); which
    one is larger depends on num_topk. Over URMA the 2026-08 source checks the MTE formula although its kernel lays out
    more; the kernel's layout counts.
    """
    if profile.revision == "9.1":
        return bitmap_window(buffer)
    if profile.topology == "urma":
        return max(bitmap_window(buffer), urma_window(buffer))
    return max(bitmap_window(buffer), list_window(buffer))


def smallest_bytes(profile: Profile, buffer: BufferFacts) -> int:
    """Bytes of the whole window that some package of the revision is content with.

    A 950 package allocates by its own formula, so a window that a real package made is judged by the smaller of the two
    of 9.2; over URMA by the kernel's layout, which the package of 2026-08 overruns without a word.
    """
    if profile.revision == "9.1" or profile.topology == "urma":
        return least_bytes(profile, buffer)
    return min(bitmap_window(buffer), list_window(buffer))


def bitmap_window(buffer: BufferFacts) -> int:
    """MTE of 9.1.0 and of 2026-08 (op tiling arch35, CalcPeermemLeastSize): a bit per route for each (expert, rank)."""
    return SYNC + _bitmaps(buffer) + _records(buffer) + _landing(buffer)


def list_window(buffer: BufferFacts) -> int:
    """MTE of the source later than 2026-08: a list of token numbers for each expert and rank instead of the bitmap.

    The area for exception dumps and 8 KiB behind the lists are new with it.
    """
    tokens = buffer.num_max_tokens_per_rank
    bytes_each = 2 if tokens * buffer.num_topk <= 32768 else 4
    lists = round_up(_pairs(buffer) * round_up(tokens * bytes_each, 32), 512)
    return 60 * KIB + SYNC + lists + 8 * KIB + _records(buffer) + _landing(buffer)


def urma_window(buffer: BufferFacts) -> int:
    """What the kernel of 2026-08 lays out over URMA: a relay record and a flag per token and server."""
    tokens, servers = buffer.num_max_tokens_per_rank, server_count(buffer)
    relay = round_up(tokens * round_up(_record(buffer), 512) * servers, 512)
    flags = round_up(servers * tokens * 8, 512)
    return SYNC + _bitmaps(buffer) + relay + flags + _landing(buffer)


def server_count(buffer: BufferFacts) -> int:
    """Servers of a URMA communicator; where rank_num_per_server is not known (0), the most there can be, ep/2."""
    return ceil_div(buffer.ep_world_size, buffer.rank_num_per_server or 2)


def _pairs(buffer: BufferFacts) -> int:
    """Pairs of a local expert and a source rank."""
    return buffer.experts_per_rank * buffer.ep_world_size


def _bitmaps(buffer: BufferFacts) -> int:
    routes = round_up(buffer.num_max_tokens_per_rank * buffer.num_topk * 4, 256) // 4
    # Behind each bitmap stands its count, 32 bytes.
    return round_up(_pairs(buffer) * (round_up(routes // 8, 32) + 32), 512)


def _record(buffer: BufferFacts) -> int:
    return dispatch_record(buffer.hidden, buffer.num_topk, with_weights=buffer.topk_weights_type == 1)


def _records(buffer: BufferFacts) -> int:
    return round_up(buffer.num_max_tokens_per_rank * _record(buffer), 512)


def _landing(buffer: BufferFacts) -> int:
    row = combine_row(buffer.hidden, quantised=buffer.combine_quant_mode != 0)
    return round_up(buffer.num_max_tokens_per_rank * buffer.num_topk * row, 512)
