"""Bytes that a token sends and gets back: its records and rows, on how many ranks its experts sit.

Products pad their records; the twin sends the parts one behind another, without padding.
"""

from dataclasses import dataclass
from math import comb

from vllm_megamoe.profiles.facts import E2M1, MX_ELEMENTS, BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes import window_950
from vllm_megamoe.profiles.sizes.common import ceil_div


def expected_cards(ep_world_size: int, num_experts: int, topk: int) -> float:
    """Expected number of distinct ranks among a token's experts, when every choice of k of them is equally likely.

    A rank is missed with probability C(E - E/ep, k) / C(E, k).
    """
    per_rank = num_experts // ep_world_size
    missed = comb(num_experts - per_rank, topk) / comb(num_experts, topk)
    return ep_world_size * (1.0 - missed)


def most_cards(ep_world_size: int, topk: int) -> int:
    """Distinct ranks in the worst case."""
    return min(ep_world_size, topk)


def twin_record(buffer: BufferFacts, *, elements_per_byte: int, with_weight: bool) -> int:
    """Bytes of a (token, expert) pair: the token, its scales, 4 for the router weight, 8 for token and k when merging.

    Merging on the card needs the weight in the record in either topk_weights_type.
    """
    hidden, merging = buffer.hidden, buffer.combine_comm_mode == 1
    if buffer.dispatch_quant_mode == 2:
        token = hidden + 4
    elif buffer.dispatch_quant_mode == 4 or buffer.dispatch_quant_out_dtype in MX_ELEMENTS:
        token = hidden // elements_per_byte + ceil_div(hidden, 32)
    else:
        token = 2 * hidden
    return token + (4 if with_weight or merging else 0) + (8 if merging else 0)


def twin_row(buffer: BufferFacts) -> int:
    """Bytes of a row on its way back: bf16, or MXFP8 codes and scales; where a capacity may drop rows, a byte that
    says whether this one was computed.
    """
    hidden, capped = buffer.hidden, buffer.max_recv_token_num > 0 and buffer.combine_comm_mode == 0
    row = hidden + ceil_div(hidden, 32) if buffer.combine_quant_mode else 2 * hidden
    return row + int(capped)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBytes:
    """Bytes per token, over all its experts; its own rank's share is in it.

    For traffic that leaves the card multiply by `remote_share`, which holds on average for a uniform router.

    Attributes:
        record: bytes of a dispatch record as the buffer is configured.
        row: bytes of a row on its way back, as configured.
        dispatch: k records.
        dispatch_with_weights: k records with the router weight forwarded (topk_weights_type=1), None where the product
            has no such mode.
        dispatch_without_weights: k records with topk_weights_type=0.
        combine: k rows, combine_comm_mode=0.
        combine_merged_expected: one bf16 row per rank that holds an expert of the token (combine_comm_mode=1), on
            average for a uniform router; None where the product has no such mode.
        combine_merged_worst: the same when the experts lie on as many ranks as they can.
        cards_expected, cards_worst: those numbers of ranks.
        remote_share: (ep - 1) / ep.
    """

    record: int
    row: int
    dispatch: int
    dispatch_with_weights: int | None
    dispatch_without_weights: int
    combine: int
    combine_merged_expected: float | None
    combine_merged_worst: int | None
    cards_expected: float
    cards_worst: int
    remote_share: float


def wire_bytes_per_token(profile: Profile, buffer: BufferFacts, *, use_case: str | None = None) -> WireBytes:
    """What a token moves, record by record: every (token, expert) pair is one record there and one row back.

    Records include the padding that the device moves with them. What merging (combine_comm_mode=1) adds to a dispatch
    record stands in no document and no source that was read; it is not counted, but for the twin's own records.

    Args:
        use_case: value of UseCase; decides on A3 between the records of INT8 and INT4. None: INT8.
    """
    topk, hidden, ranks = buffer.num_topk, buffer.hidden, buffer.ep_world_size
    plain, weighted = (_record(profile, buffer, use_case, weights) for weights in (False, True))
    forwards = profile.product in ("none", "950") and profile.revision != "9.1"
    merges = forwards and profile.topology == "mte"
    cards, most = expected_cards(ranks, buffer.num_experts, topk), most_cards(ranks, topk)
    record = weighted if buffer.topk_weights_type == 1 else plain
    row = _row(profile, buffer)
    return WireBytes(
        record=record,
        row=row,
        dispatch=topk * record,
        dispatch_with_weights=topk * weighted if forwards else None,
        dispatch_without_weights=topk * plain,
        combine=topk * row,
        combine_merged_expected=cards * 2 * hidden if merges else None,
        combine_merged_worst=most * 2 * hidden if merges else None,
        cards_expected=cards,
        cards_worst=most,
        remote_share=(ranks - 1) / ranks,
    )


def _record(profile: Profile, buffer: BufferFacts, use_case: str | None, weights: bool) -> int:
    hidden, packed = buffer.hidden, 2 if buffer.dispatch_quant_out_dtype == E2M1 else 1
    if profile.product == "none":
        return twin_record(buffer, elements_per_byte=packed, with_weight=weights)
    if profile.is_950:
        return window_950.dispatch_record(hidden, buffer.num_topk, with_weights=weights, elements_per_byte=packed)
    if buffer.dispatch_quant_mode == 0:
        return 2 * hidden
    # int8 with the float32 scale behind it: 32 bytes of stride on A3, 512 on A2 and for INT4 (op kernel arch22).
    return hidden + (32 if profile.product == "a3" and use_case != "a8w4-int" else 512)


def _row(profile: Profile, buffer: BufferFacts) -> int:
    if profile.product == "none":
        return twin_row(buffer)
    if profile.is_950:
        return window_950.combine_row(buffer.hidden, quantised=buffer.combine_quant_mode != 0)
    return 2 * buffer.hidden
