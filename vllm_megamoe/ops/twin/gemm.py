"""Matrix products on stored weights, block by block over the output channels.

All run in float32. For integers every partial sum stays below 2^24, where float32 is exact in any order; other values
are exact in float32, and the device accumulates in float32 too, in an order of its own.
"""

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.ops.twin.blocks import FP16_SHIFT, padded_inputs, pieces
from vllm_megamoe.ops.twin.weights import Weights

EXACT_K = {AclDtype.INT8: 1 << 10, AclDtype.INT4: 1 << 18}
"""Longest sum that float32 holds exactly in any order: 2^10 * 127 * 128 < 2^24 and 2^18 * 8 * 8 = 2^24."""


def dense(x: Tensor, weights: Weights, expert: int) -> Tensor:
    """float32 [n, K] x stored BF16 or float32 [K, N] -> float32 [n, N]."""
    out = torch.empty(len(x), weights.outputs, dtype=torch.float32)
    for start, stop, block in pieces(weights, expert, "twos_complement"):
        torch.mm(x, block[:, : stop - start], out=out[:, start:stop])
    return out


def integer(digits: Tensor, weights: Weights, expert: int, nibbles: Nibbles) -> Tensor:
    """Integers as float32 [n, K] x stored INT8 or INT4 [K, N] -> exact sums, float32 where those fit, else int32."""
    k, exact_k = weights.inputs, EXACT_K[weights.element]
    out = torch.empty(len(digits), weights.outputs, dtype=torch.float32 if k <= exact_k else torch.int32)
    for start, stop, block in pieces(weights, expert, nibbles):
        sums = _exact(digits, block, exact_k)
        if weights.element is AclDtype.INT4:
            # even channels, then odd ones -> side by side
            sums = sums.view(len(sums), 2, -1).transpose(1, 2).flatten(1)
        out[:, start:stop] = sums[:, : stop - start]
    return out


def _exact(digits: Tensor, block: Tensor, exact_k: int) -> Tensor:
    if block.shape[0] <= exact_k:
        return digits @ block
    total = (digits[:, :exact_k] @ block[:exact_k]).to(torch.int32)
    for low in range(exact_k, block.shape[0], exact_k):
        total += (digits[:, low : low + exact_k] @ block[low : low + exact_k]).to(torch.int32)
    return total


def mx(x: Tensor, weights: Weights, expert: int) -> Tensor:
    """float32 [n, K] x stored MX codes [N, K] with their scales -> float32 [n, N]."""
    out = torch.empty(len(x), weights.outputs, dtype=torch.float32)
    x = _arrange(x, weights)
    for start, stop, block in pieces(weights, expert, "twos_complement"):
        torch.mm(x, block.t(), out=out[:, start:stop])
    # Blocks are smaller by a power of two, see `rows_of`; a product by one is exact.
    shift = FP16_SHIFT[weights.element]
    return out.mul_(2.0**shift) if shift else out


def _arrange(x: Tensor, weights: Weights) -> Tensor:
    """Inputs in the order of `rows_of`: for FP4 the even ones before the odd ones, and zeros against padding."""
    parts = 2 if weights.element is AclDtype.FLOAT4_E2M1 else 1
    width = padded_inputs(weights)
    if parts == 1 and width == x.shape[1]:
        return x
    halves = x.view(len(x), -1, parts).transpose(1, 2)
    return torch.nn.functional.pad(halves, (0, width // parts - halves.shape[2])).flatten(1)
