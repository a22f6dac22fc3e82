"""Matrix products on stored weights, block by block over the output channels.

All run in float32. For integers every partial sum stays below 2^24, where float32 is exact in any order; other values
are exact in float32, and the device accumulates in float32 too, in an order of its own.
"""

import torch
from torch import Tensor

from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.ops.twin.blocks import block_channels, columns_of, rows_of
from vllm_megamoe.ops.twin.weights import Weights

EXACT_K = 1024
"""Longest sum of int8 products that float32 holds exactly in any order: 1024 * 127 * 128 < 2^24."""


def dense(x: Tensor, weights: Weights, expert: int) -> Tensor:
    """float32 [n, K] x stored BF16 or float32 [K, N] -> float32 [n, N]."""
    out = torch.empty(len(x), weights.outputs)
    step = block_channels(weights.inputs)
    for start in range(0, weights.outputs, step):
        stop = min(start + step, weights.outputs)
        torch.mm(x, columns_of(weights, expert, start, stop, "twos_complement"), out=out[:, start:stop])
    return out


def integer(digits: Tensor, weights: Weights, expert: int, nibbles: Nibbles, exact_k: int) -> Tensor:
    """Integers as float32 [n, K] x stored INT8 or INT4 [K, N] -> exact sums, float32 where those fit, else int32.

    Args:
        exact_k: longest stretch of K whose sums stay below 2^24.
    """
    k = weights.inputs
    dtype = torch.float32 if k <= exact_k else torch.int32
    out = torch.empty(len(digits), weights.outputs, dtype=dtype)
    step = block_channels(k)
    for start in range(0, weights.outputs, step):
        stop = min(start + step, weights.outputs)
        block, part = columns_of(weights, expert, start, stop, nibbles), out[:, start:stop]
        if k <= exact_k:
            torch.mm(digits, block, out=part)
            continue
        part.copy_(digits[:, :exact_k] @ block[:exact_k])
        for low in range(exact_k, k, exact_k):
            part.add_((digits[:, low : low + exact_k] @ block[low : low + exact_k]).to(torch.int32))
    return out


def mx(x: Tensor, weights: Weights, expert: int) -> Tensor:
    """float32 [n, K] x stored MX codes [N, K] with their scales -> float32 [n, N]."""
    out = torch.empty(len(x), weights.outputs)
    step = block_channels(weights.inputs)
    for start in range(0, weights.outputs, step):
        stop = min(start + step, weights.outputs)
        torch.mm(x, rows_of(weights, expert, start, stop).t(), out=out[:, start:stop])
    return out
