"""The products of A8W8-INT, and the fixpipe that ends every integer GEMM."""

import torch
from torch import Tensor

from vllm_megamoe.layout.scales import from_uint64
from vllm_megamoe.numerics.rounding import to_fp16, truncate_scale
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops.twin import gemm
from vllm_megamoe.ops.twin.weights import Weights


def int8_product(q: Tensor, weights: Weights, expert: int, row_scale: Tensor, numerics: Numerics) -> Tensor:
    """int8 [n, K] x INT8 [K, N] -> float32 [n, N], both scales applied."""
    sums = gemm.integer(q.float(), weights, expert, numerics.int4_nibbles)
    return fixpipe(sums, channel_scale(weights, expert, numerics), numerics) * row_scale  # R6: fp32 product


def channel_scale(weights: Weights, expert: int, numerics: Numerics) -> Tensor:
    """float32 [N], out of the low words of the 64-bit scales."""
    scale = from_uint64(weights.scales[expert])
    return truncate_scale(scale) if numerics.scale_bits == "tf32" else scale


def fixpipe(sums: Tensor, channel: Tensor, numerics: Numerics) -> Tensor:
    """Exact integer sums [n, N] times the channel scale, stored in fp16 -> float32."""
    scaled = sums.to(torch.float32) * channel
    if numerics.rule == "spec":
        return scaled
    return to_fp16(scaled, numerics.fp16_overflow).float()  # R5: int32 -> fp32 -> times scale -> fp16, half even
