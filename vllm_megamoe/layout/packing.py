"""Packed 4-bit elements and scales in the operator's form, each with its inverse.

Two 4-bit elements share a byte along the last dimension, low nibble first. Channel scales are 64-bit words (A2/A3),
E8M0 scales come in pairs (950).
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import LayoutError


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 codes 0..15 [..., C] -> uint8 [..., C/2]; the even element is the low nibble.

    Raises:
        LayoutError: C is odd.
    """
    if codes.shape[-1] % 2:
        raise LayoutError(f"cannot pack {codes.shape[-1]} 4-bit elements into bytes; expected an even number.")
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
        raise LayoutError(f"{2 * packed.shape[-1]} INT4 elements do not fill int32 words; expected a multiple of 8.")
    return packed.view(torch.int32)


def as_int8(words: Tensor) -> Tensor:
    """The inverse: int32 [..., C/8] -> int8 [..., C/2]; formatted or plain."""
    return words.view(torch.int8)


OFFSET_BINARY = -0x78
"""int8 0x88: bits that differ between two nibbles in two's complement and the same in offset binary."""


def pack_int4_rows(values: Tensor) -> Tensor:
    """int8 values -8..7 [R, C] -> int8 [R/2, C]; the even row is the low nibble.

    Transposed it is `pack_int4` of the transpose: packing rows takes whole rows at a time.

    Raises:
        LayoutError: R is odd.
    """
    if values.shape[0] % 2:
        raise LayoutError(f"cannot pack {values.shape[0]} rows of 4-bit elements into bytes; expected an even number.")
    codes = values.contiguous().view(torch.uint8)
    packed = codes[1::2] << 4
    packed |= codes[0::2] & 0x0F
    return packed.view(torch.int8)


def unpack_int4_rows(packed: Tensor) -> Tensor:
    """int8 [R/2, C] -> int8 values -8..7 [R, C]; the inverse of `pack_int4_rows`."""
    values = torch.empty((packed.shape[0], 2, packed.shape[1]), dtype=torch.int8, device=packed.device)
    torch.bitwise_left_shift(packed, 4, out=values[:, 0])
    values[:, 0] >>= 4  # with its sign
    torch.bitwise_right_shift(packed, 4, out=values[:, 1])
    return values.flatten(0, 1)


_WORD = 8
_AT_ONCE = 16
"""Nibbles of at most 15 whose sum fits into a byte."""


def _repeated(byte: int) -> int:
    """The int64 of which every byte is this one."""
    return int.from_bytes(bytes([byte]) * _WORD, "little", signed=True)


def sum_int4_rows(packed: Tensor) -> Tensor:
    """int8 [R/2, C] as `pack_int4_rows` gives it -> int32 [R], the sum of each row's values.

    Eight bytes at a time: codes become value + 8, and the nibbles of 16 words are added up in the bytes of one.
    """
    if short := -packed.shape[1] % (_WORD * _AT_ONCE):
        packed = pad(packed, (0, short))
    packed = packed.contiguous()
    words, offset = packed.view(torch.int64), 8 * packed.shape[1]
    sums = torch.empty((len(words), 2), dtype=torch.int32, device=packed.device)
    # Pieces that stay in the processor's cache with what is made of them.
    rows = max(1, 2**17 // max(words.shape[1], 1))
    for start in range(0, len(words), rows):
        codes = words[start : start + rows] ^ _repeated(0x88)
        low = codes & _repeated(0x0F)
        high = codes.bitwise_right_shift_(4).bitwise_and_(_repeated(0x0F))
        for half, nibbles in enumerate((low, high)):
            few = nibbles.view(len(codes), _AT_ONCE, -1).sum(dim=1)
            sums[start : start + rows, half] = few.view(torch.uint8).sum(dim=1, dtype=torch.int32) - offset
    return sums.flatten()


NEUTRAL_E8M0 = 127
"""2^0: the byte that fills a pair; 0xFF would be NaN and poison its row."""


def to_uint64(scale: Tensor) -> Tensor:
    """float32 [N] -> int64 [N]: the float's bits in the low word, zeros above (torch_api.txt, int8 example).

    int64 because torch computes little in uint64; the operator reads either, `.view(torch.uint64)` is the same bytes.

    Raises:
        LayoutError: another dtype, whose bits would be another number.
    """
    if scale.dtype != torch.float32:
        raise LayoutError(f"channel scales have dtype {scale.dtype}; expected float32, widened before the bit-cast.")
    return scale.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def from_uint64(words: Tensor) -> Tensor:
    """int64 or uint64 [N] -> float32 [N] out of the low words; a high word is ignored, as the fixpipe does.

    Raises:
        LayoutError: another dtype.
    """
    if words.dtype not in (torch.int64, torch.uint64):
        raise LayoutError(
            f"channel scales have dtype {words.dtype}; expected uint64 (or int64): "
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
