"""Byte orders of the operands, written from torch_api.txt and the operator's kernels."""

import numpy as np
from numpy.typing import NDArray
from oracle.interval import F32

Bytes = NDArray[np.uint8]


def to_nz(matrix: NDArray[np.generic], c0: int) -> NDArray[np.generic]:
    """[..., R, C] -> [..., ceil(C/c0), ceil(R/16), 16, c0], zero-filled: element by element, from the index formula.

    off(r, c) = (c / C0) * (R16 * C0) + (r / 16) * (16 * C0) + (r % 16) * C0 + c % C0.
    """
    *outer, rows, cols = matrix.shape
    tall, blocks = -(-rows // 16) * 16, -(-cols // c0)
    flat = np.zeros((*outer, blocks * tall * c0), matrix.dtype)
    r, c = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
    flat[..., (c // c0) * tall * c0 + (r // 16) * 16 * c0 + (r % 16) * c0 + c % c0] = matrix
    return flat.reshape(*outer, blocks, tall // 16, 16, c0)


def pack_nibbles(codes: NDArray[np.generic]) -> Bytes:
    """[..., C] -> [..., C/2]: low nibble first; negative integers in two's complement."""
    nibbles = codes.astype(np.int64) & 15
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).astype(np.uint8)


def pack_excess8(codes: NDArray[np.generic]) -> Bytes:
    """As the documents' int4 example packs: code + 8."""
    return pack_nibbles(codes.astype(np.int64) + 8)


def scale_bits(scale: F32) -> NDArray[np.int64]:
    """fp32 bits in the low half of 64, zeros above."""
    return scale.astype(np.float32).view(np.uint32).astype(np.int64)


def pair_scales(scales: Bytes) -> Bytes:
    """E8M0 [..., G] -> [..., ceil(G/2), 2]; the filling byte 127 means 1."""
    odd = [(0, 0)] * (scales.ndim - 1) + [(0, scales.shape[-1] % 2)]
    full = np.pad(scales, odd, constant_values=127)
    return full.reshape(*scales.shape[:-1], -1, 2)


def bias8(weight: NDArray[np.int8], scale: F32) -> F32:
    """A8W4-INT compensation, 8 sum_k(w) s: integers [..., N, K], scale [..., N] -> [..., N]."""
    return np.float32(8.0 * weight.astype(np.float64).sum(axis=-1) * scale)
