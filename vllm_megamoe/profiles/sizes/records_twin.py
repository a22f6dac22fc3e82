"""What the twin sends between its ranks: the parts of a record one behind another, without padding."""

from vllm_megamoe.profiles.call_facts import BufferFacts
from vllm_megamoe.profiles.sizes.units import ceil_div

_MX = ("FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT4_E2M1")


def dispatch_record(buffer: BufferFacts, *, elements_per_byte: int, with_weight: bool) -> int:
    """Bytes of a (token, expert) pair: the token, its scales, 4 for the router weight, 8 for token and k when merging.

    Merging on the card needs the weight in the record in either topk_weights_type.
    """
    hidden, merging = buffer.hidden, buffer.combine_comm_mode == 1
    if buffer.dispatch_quant_mode == 2:
        token = hidden + 4
    elif buffer.dispatch_quant_mode == 4 or buffer.dispatch_quant_out_dtype in _MX:
        token = hidden // elements_per_byte + ceil_div(hidden, 32)
    else:
        token = 2 * hidden
    return token + (4 if with_weight or merging else 0) + (8 if merging else 0)


def combine_row(buffer: BufferFacts) -> int:
    """Bytes of a row on its way back: bf16, or MXFP8 codes and scales; where a capacity may drop rows, a byte that
    says whether this one was computed.
    """
    hidden, capped = buffer.hidden, buffer.max_recv_token_num > 0 and buffer.combine_comm_mode == 0
    row = hidden + ceil_div(hidden, 32) if buffer.combine_quant_mode else 2 * hidden
    return row + int(capped)
