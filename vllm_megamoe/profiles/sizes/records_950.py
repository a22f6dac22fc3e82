"""What travels between 950 ranks: the MX record of a dispatched token, the row that comes back."""

from vllm_megamoe.profiles.sizes.units import ceil_div, round_up


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
