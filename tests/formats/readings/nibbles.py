"""How codes of 4 and 8 bits lie in bytes and words: one function for each packing that a checkpoint uses.

Sources: facts/checkpoints.md 3.2 (msModelSlim: pairs of rows), 3.3 (compressed-tensors: offset binary along K),
3.12 (GPTQ along K, AWQ along N in its own order); fixtures/README.md proves those of the fixtures by their error.
"""

import numpy as np
from formats.readings.numbers import Bits8, Ints
from numpy.typing import NDArray

AWQ_COLUMN = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of an AWQ word holds column AWQ_COLUMN[i] of the word's eight."""


def signed4(nibble: Ints) -> Ints:
    """Two's complement of 4 bits: 0..7 stay, 8..15 are -8..-1."""
    return np.where(nibble < 8, nibble, nibble - 16)


def pairs_along_k(packed: Bits8) -> Bits8:
    """[N, K/2] bytes -> [N, K] codes: even k in the LOW nibble."""
    n, half = packed.shape
    codes = np.zeros((n, 2 * half), np.uint8)
    codes[:, 0::2] = packed & 15
    codes[:, 1::2] = packed >> 4
    return codes


def pairs_along_n(packed: NDArray[np.int8]) -> Ints:
    """msModelSlim W4A8 1.0.0: int8 [N/2, K] -> [N, K]: byte row j holds output row 2j in the low nibble, 2j+1 in the
    high one, both in two's complement."""
    byte = packed.view(np.uint8).astype(np.int64)
    half, k = byte.shape
    codes = np.zeros((2 * half, k), np.int64)
    codes[0::2] = signed4(byte & 15)
    codes[1::2] = signed4(byte >> 4)
    return codes


def words_along_k(packed: NDArray[np.int32], bits: int, k: int) -> Ints:
    """int32 [N, ceil(K * bits / 32)] -> unsigned codes [N, K], the lowest bits first (compressed-tensors)."""
    per_word = 32 // bits
    word = packed.astype(np.int64) & 0xFFFFFFFF
    codes = np.zeros((packed.shape[0], packed.shape[1] * per_word), np.int64)
    for i in range(per_word):
        codes[:, i::per_word] = (word >> (bits * i)) & ((1 << bits) - 1)
    return codes[:, :k]


def words_along_rows(packed: NDArray[np.int32], bits: int) -> Ints:
    """int32 [R * bits / 32, C] -> unsigned codes [R, C], the lowest bits first.

    GPTQ's weights (R is K) and compressed-tensors' zero points (R is N).
    """
    return words_along_k(np.ascontiguousarray(packed.T), bits, packed.shape[0] * 32 // bits).T


def gptq_zero_points(packed: NDArray[np.int32], bits: int) -> Ints:
    """GPTQ qzeros int32 [G, N * bits / 32] -> stored zero points [G, N], the lowest bits first, nothing added yet."""
    return words_along_k(packed, bits, packed.shape[1] * 32 // bits)


def awq_words(packed: NDArray[np.int32]) -> Ints:
    """AWQ int32 [R, N/8] -> unsigned codes [R, N]: nibble i of a word holds column (0,2,4,6,1,3,5,7)[i]."""
    word = packed.astype(np.int64) & 0xFFFFFFFF
    codes = np.zeros((packed.shape[0], packed.shape[1] * 8), np.int64)
    for i, column in enumerate(AWQ_COLUMN):
        codes[:, column::8] = (word >> (4 * i)) & 15
    return codes
