"""Scales in the operator's form: channel scales as 64-bit words, E8M0 scales in pairs (operator.md 5.4)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import LayoutError

NEUTRAL_E8M0 = 127
"""2^0: the byte that fills a pair; 0xFF would be NaN and poison its row."""


def to_uint64(scale: Tensor) -> Tensor:
    """float32 [N] -> int64 [N]: the float's bits in the low word, zeros above."""
    if scale.dtype != torch.float32:
        raise LayoutError(f"channel scales have dtype {scale.dtype}; wanted torch.float32 (widen first).")
    return scale.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def from_uint64(words: Tensor) -> Tensor:
    """int64 or uint64 [N] -> float32 [N] out of the low words."""
    return words.contiguous().view(torch.int32).unflatten(-1, (-1, 2))[..., 0].contiguous().view(torch.float32)


def pair_scales(scales: Tensor) -> Tensor:
    """uint8 [..., G] -> [..., ceil(G/2), 2]: entry [j, i] scales elements 64j + 32i to 64j + 32i + 31."""
    return pad(scales, (0, scales.shape[-1] % 2), value=NEUTRAL_E8M0).unflatten(-1, (-1, 2))


def unpair_scales(pairs: Tensor, groups: int) -> Tensor:
    """The inverse: uint8 [..., ceil(G/2), 2] -> [..., G]."""
    return pairs.flatten(-2)[..., :groups].contiguous()
