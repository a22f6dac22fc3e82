"""Two 4-bit elements in a byte along the last dimension, low nibble first."""

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 codes 0..15 [..., C] -> uint8 [..., C/2]; the even element is the low nibble.

    Raises:
        LayoutError: C is odd.
    """
    if codes.shape[-1] % 2:
        raise LayoutError(f"cannot pack {codes.shape[-1]} 4-bit elements into bytes; wanted an even number.")
    return (codes[..., 0::2] & 0x0F) | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., C/2] -> uint8 codes 0..15 [..., C]."""
    return torch.stack([packed & 0x0F, packed >> 4], dim=-1).flatten(-2)


pack_e2m1, unpack_e2m1 = pack_nibbles, unpack_nibbles
"""FP4 codes are packed as they are: byte = (odd << 4) | even."""


def pack_int4(values: Tensor, offset_binary: bool = False) -> Tensor:
    """int8 values -8..7 [..., C] -> int8 [..., C/2].

    Args:
        offset_binary: store value + 8 (the documents' example) instead of two's complement (the kernel's int4b_t).
    """
    codes = values.contiguous().view(torch.uint8)
    return pack_nibbles(codes ^ 8 if offset_binary else codes).view(torch.int8)


def unpack_int4(packed: Tensor, offset_binary: bool = False) -> Tensor:
    """int8 [..., C/2] -> int8 values -8..7 [..., C]; the inverse of `pack_int4`."""
    codes = unpack_nibbles(packed.contiguous().view(torch.uint8)).view(torch.int8)
    return codes - 8 if offset_binary else (codes ^ 8) - 8


def as_int32(packed: Tensor) -> Tensor:
    """The other carrier of INT4: int8 [..., C/2] -> int32 [..., C/8], element n in nibble n % 8; formatted or plain.

    Raises:
        LayoutError: C is no multiple of 8.
    """
    if packed.shape[-1] % 4:
        raise LayoutError(f"{2 * packed.shape[-1]} INT4 elements do not fill int32 words; wanted a multiple of 8.")
    return packed.view(torch.int32)


def as_int8(words: Tensor) -> Tensor:
    """The inverse: int32 [..., C/8] -> int8 [..., C/2]; formatted or plain."""
    return words.view(torch.int8)
