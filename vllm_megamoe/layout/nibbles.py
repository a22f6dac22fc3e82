"""Two 4-bit elements in a byte, low nibble first."""

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 codes 0..15 [..., C] -> uint8 [..., C/2]; the even element is the low nibble."""
    if codes.shape[-1] % 2:
        raise LayoutError(f"cannot pack {codes.shape[-1]} 4-bit elements into bytes; wanted an even number.")
    return (codes[..., 0::2] & 0x0F) | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., C/2] -> uint8 codes 0..15 [..., C]."""
    return torch.stack([packed & 0x0F, packed >> 4], dim=-1).flatten(-2)


def pack_int4(values: Tensor) -> Tensor:
    """int8 values -8..7 [..., C] -> int8 [..., C/2], two's complement nibbles."""
    return pack_nibbles(values.contiguous().view(torch.uint8)).view(torch.int8)


def unpack_int4(packed: Tensor, offset_binary: bool = False) -> Tensor:
    """int8 [..., C/2] -> int8 values -8..7 [..., C].

    Args:
        offset_binary: read a nibble as value + 8, the packing of the documents' example.
    """
    codes = unpack_nibbles(packed.contiguous().view(torch.uint8)).view(torch.int8)
    return codes - 8 if offset_binary else ((codes ^ 8) - 8)
