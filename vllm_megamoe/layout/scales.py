"""Scales in the operator's form: channel scales as 64-bit words (A2/A3), E8M0 scales in pairs (950)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import LayoutError

NEUTRAL_E8M0 = 127
"""2^0: the byte that fills a pair; 0xFF would be NaN and poison its row."""


def to_uint64(scale: Tensor) -> Tensor:
    """float32 [N] -> int64 [N]: the float's bits in the low word, zeros above (torch_api.txt, int8 example).

    int64 because torch computes little in uint64; the operator reads either, `.view(torch.uint64)` is the same bytes.

    Raises:
        LayoutError: another dtype, whose bits would be another number.
    """
    if scale.dtype != torch.float32:
        raise LayoutError(f"channel scales have dtype {scale.dtype}; wanted float32, widened before the bit-cast.")
    return scale.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def from_uint64(words: Tensor) -> Tensor:
    """int64 or uint64 [N] -> float32 [N] out of the low words; a high word is ignored, as the fixpipe does.

    Raises:
        LayoutError: another dtype.
    """
    if words.dtype not in (torch.int64, torch.uint64):
        raise LayoutError(
            f"channel scales have dtype {words.dtype}; wanted uint64 (or int64): "
            "scale.view(torch.int32).to(torch.int64).view(torch.uint64) of the float32 scale."
        )
    return words.contiguous().view(torch.float32)[..., 0::2].contiguous()


def pair_scales(scales: Tensor) -> Tensor:
    """uint8 [..., G] -> [..., ceil(G/2), 2]: entry [j, i] scales elements 64j + 32i to 64j + 32i + 31."""
    *lead, groups = scales.shape
    return pad(scales, (0, groups % 2), value=NEUTRAL_E8M0).reshape(*lead, -(-groups // 2), 2)


def unpair_scales(pairs: Tensor, groups: int) -> Tensor:
    """The inverse: uint8 [..., ceil(G/2), 2] -> [..., G]."""
    return pairs.flatten(-2)[..., :groups].contiguous()
