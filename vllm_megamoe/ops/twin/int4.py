"""The products of A8W4-INT: INT8 activations split into two INT4 digits (MSD), compensated by the bias."""

import torch
from torch import Tensor

from vllm_megamoe.numerics.int8 import split_msd
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops.twin import gemm
from vllm_megamoe.ops.twin.int8 import channel_scale, fixpipe
from vllm_megamoe.ops.twin.weights import Weights


def int4_product(q: Tensor, weights: Weights, expert: int, row_scale: Tensor, numerics: Numerics) -> Tensor:
    """int8 [n, K] x INT4 [K, N] -> float32 [n, N], both scales and the bias applied."""
    high, low = split_msd(q)
    # One product for both digits: each row twice, as the device interleaves them.
    digits = q.new_empty(2, *q.shape, dtype=torch.float32)
    digits[0], digits[1] = high, low
    sums = gemm.integer(digits.flatten(0, 1), weights, expert, numerics.int4_nibbles)
    high, low = fixpipe(sums, channel_scale(weights, expert, numerics), numerics).chunk(2, dim=0)
    merged = (high * 16.0 + low) + weights.biases[expert]  # R6: fp32, in this order, then times the row's scale
    return merged * row_scale
