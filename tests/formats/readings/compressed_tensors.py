"""compressed-tensors (llm-compressor): int8, int4 and FP8 in its three containers.

Source: facts/checkpoints.md 3.3 (checked there against the library's own packer), fixtures/README.md.

* int-quantized: `weight` I8 [N, K], one code per byte, also for int4; `weight_scale` [N, 1], [1] or [N, K/g].
* pack-quantized: `weight_packed` I32 [N, K/8] (int8: [N, K/4]), the lowest bits first along K, OFFSET binary: stored =
  q + 8 (q + 128); `weight_shape` I64 [2]; `weight_scale` [N, K/g]. Asymmetric: `weight_zero_point` I32 [N/8, K/g],
  packed along N in the same offset binary; w = (q - z) * scale. Activation order: `weight_g_idx` I32 [K], the group of
  each k.
* float-quantized: `weight` F8_E4M3 [N, K]; `weight_scale` [N, 1], [1], or tiles [ceil(N/128), ceil(K/128)].
MXFP8, MXFP4 and NVFP4 are in mx.py and nvfp4.py.
"""

import numpy as np
from formats.readings.experts import Codes, Projection, expand, scaled_floats
from formats.readings.nibbles import words_along_k, words_along_rows
from formats.readings.numbers import F64, Ints
from formats.readings.store import Store

TILE = 128


def int8(store: Store, prefix: str) -> Projection:
    """W8A8 per channel or per tensor."""
    codes = store.ints(prefix + "weight", "I8")
    return Projection.of(Codes("int8", codes, _channel(store, prefix, len(codes))))


def int4(store: Store, prefix: str) -> Projection:
    """W4A8: one int4 code per int8 byte; per channel, or in groups along K."""
    codes = store.ints(prefix + "weight", "I8")
    return _grouped(store, prefix, codes, np.zeros_like(codes), bits=4)


def packed_int4(store: Store, prefix: str) -> Projection:
    """W4A16: see the module."""
    return _packed(store, prefix, bits=4)


def packed_int8(store: Store, prefix: str) -> Projection:
    """W8A16: see the module."""
    return _packed(store, prefix, bits=8)


def fp8(store: Store, prefix: str) -> Projection:
    """FP8 per channel or per tensor."""
    codes = store.bits(prefix + "weight", "F8_E4M3")
    scale = _channel(store, prefix, len(codes))
    return scaled_floats("e4m3", codes, np.repeat(scale[:, None], codes.shape[1], axis=1))


def fp8_block(store: Store, prefix: str) -> Projection:
    """FP8_BLOCK: tiles of 128 x 128 under `weight_scale`, which multiplies."""
    codes = store.bits(prefix + "weight", "F8_E4M3")
    n, k = codes.shape
    scale = store.numbers(prefix + "weight_scale", "F32", "BF16", "F8_E8M0")
    assert scale.shape == (-(-n // TILE), -(-k // TILE))
    return scaled_floats("e4m3", codes, expand(scale, n, k, TILE, TILE))


def _packed(store: Store, prefix: str, bits: int) -> Projection:
    n, k = (int(size) for size in store.bits(prefix + "weight_shape", "I64", "I32"))
    offset = 1 << (bits - 1)
    codes = words_along_k(store.bits(prefix + "weight_packed", "I32"), bits, k) - offset
    assert codes.shape == (n, k)
    zero = np.zeros_like(codes)
    if prefix + "weight_zero_point" in store:
        groups = words_along_rows(store.bits(prefix + "weight_zero_point", "I32"), bits)[:n] - offset
        zero = groups[:, _group_of(store, prefix, k, groups.shape[1])]
    return _grouped(store, prefix, codes, zero, bits)


def _grouped(store: Store, prefix: str, codes: Ints, zero: Ints, bits: int) -> Projection:
    """(code - zero) * scale of the group; one group per row is a tensor per channel.

    With zero points a difference lies in -15..15: codes of int8. (8 bits with zero points are in no checkpoint here.)
    """
    assert bits == 4 or not zero.any()
    scale = store.numbers(prefix + "weight_scale", "F32", "BF16", "F16")
    if scale.ndim < 2 or scale.shape[1] == 1:
        difference, channel = codes - zero, _channel(store, prefix, len(codes))
        return Projection.of(Codes("int4" if bits == 4 and not zero.any() else "int8", difference, channel))
    group = _group_of(store, prefix, codes.shape[1], scale.shape[1])
    return Projection((codes - zero) * scale[:, group])


def _group_of(store: Store, prefix: str, k: int, groups: int) -> Ints:
    """The group of each k: by `weight_g_idx` where it is stored, else equal runs."""
    if prefix + "weight_g_idx" in store:
        return store.ints(prefix + "weight_g_idx", "I32", "I64")
    return np.arange(k) // (k // groups)


def _channel(store: Store, prefix: str, n: int) -> F64:
    """Scales [N, 1], [N] or one for the tensor -> [N]."""
    scale = store.numbers(prefix + "weight_scale", "F32", "BF16", "F16").reshape(-1)
    assert len(scale) in (1, n)
    return np.broadcast_to(scale, (n,)).copy()
