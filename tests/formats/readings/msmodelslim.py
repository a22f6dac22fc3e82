"""msModelSlim: each linear by the type that quant_model_description.json gives its weight; unlisted ones are FLOAT.

Source: facts/checkpoints.md 3.2; fixtures/README.md proves packing and signs by the error of the alternatives.

* W8A8_DYNAMIC, W8A8_MIX: `weight` I8 [N, K], `weight_scale` [N, 1], `weight_offset` [N, 1] all zero. w = q * scale.
* W8A8 (static): `weight` I8 [N, K], `deq_scale` [N] = input_scale * weight scale (F32, or its bits in an I64),
  `input_scale` [1]. The weight's scale is deq_scale / input_scale.
* W4A8_DYNAMIC, version 1.0.0: `weight` I8 [N/2, K], pairs of rows, two's complement; scale [N, 1]; `scale_bias` is
  8 * sum_k(q * scale), [N, 1] for gate and up, in [N, 16] partial sums over slices of K for down.
* W4A8_DYNAMIC, older: `weight` I8 [N, K], one code of -8..7 per byte, no scale_bias.
* either in groups: `weight_scale_second` [N, K/g]; w = q * second * scale.
* W8A8_MXFP8: `weight` F8_E4M3 [N, K], `weight_scale` U8 [N, K/32], 2^(byte - 127).
* W4A8_MXFP, W4A4_MXFP4, W4A16_MXFP4: `weight` U8 [N, K/2], pairs along K; same scales.
* WFP8AFP8_DYNAMIC, W8A8FP8_DYNAMIC: `weight` F8_E4M3 [N, K], `weight_scale` [N, 1].
* W4A16: the tensors of compressed-tensors' pack-quantized (vllm-ascend quantization/methods/w4a16.py, docstring).
"""

import numpy as np
from formats.readings import bf16, compressed_tensors, mx
from formats.readings.experts import Codes, Projection, scaled_floats
from formats.readings.nibbles import pairs_along_n
from formats.readings.numbers import F64, Ints
from formats.readings.store import Store

FLOAT = "FLOAT"


def linear(store: Store, prefix: str) -> Projection:
    """One projection by its described type."""
    kind = str(store.description.get(prefix + "weight") or store.description.get(prefix + "weight_packed", FLOAT))
    return TYPES[kind](store, prefix)


def _int8(store: Store, prefix: str) -> Projection:
    _zero(store, prefix + "weight_offset")
    return Projection.of(Codes("int8", store.ints(prefix + "weight", "I8"), _per_channel(store, prefix)))


def _static_int8(store: Store, prefix: str) -> Projection:
    step = store.numbers(prefix + "input_scale").reshape(())
    stored = store.raw(prefix + "deq_scale", "F32", "I64").bits.reshape(-1)
    if stored.dtype == np.int64:  # float32 bits in the low half
        stored = stored.astype(np.int32).view(np.float32)
    scale = stored.astype(np.float64) / step
    return Projection.of(Codes("int8", store.ints(prefix + "weight", "I8"), scale))


def _int4(store: Store, prefix: str) -> Projection:
    _zero(store, prefix + "weight_offset")
    scale = _per_channel(store, prefix)
    codes = _int4_codes(store, prefix, len(scale))
    assert codes.min() >= -8
    assert codes.max() <= 7
    if prefix + "weight_scale_second" not in store:
        return Projection.of(Codes("int4", codes, scale))
    return _two_stage(store, prefix, codes, scale)


def _int4_codes(store: Store, prefix: str, n: int) -> Ints:
    weight = store.bits(prefix + "weight", "I8")
    packed = store.description.get("version") == "1.0.0"
    assert packed == (2 * weight.shape[0] == n), f"{prefix}: the version and the shape of the weight disagree"
    return pairs_along_n(weight) if packed else weight.astype(np.int64)


def _two_stage(store: Store, prefix: str, codes: Ints, scale: F64) -> Projection:
    """w = q * second * scale. An int8 tensor per channel where every q * second is an integer of int8."""
    second = store.numbers(prefix + "weight_scale_second")
    if prefix + "weight_offset_second" in store:
        _zero(store, prefix + "weight_offset_second")
    group = codes.shape[1] // second.shape[1]
    inner = codes * np.repeat(second, group, axis=1)
    values = inner * scale[:, None]
    fits = np.all(inner == np.rint(inner)) and inner.min() >= -128 and inner.max() <= 127
    return Projection(values, Codes("int8", inner.astype(np.int64), scale) if fits else None)


def _fp8_per_channel(store: Store, prefix: str) -> Projection:
    if prefix + "weight_offset" in store:
        _zero(store, prefix + "weight_offset")
    codes = store.bits(prefix + "weight", "F8_E4M3")
    return scaled_floats("e4m3", codes, np.repeat(_per_channel(store, prefix)[:, None], codes.shape[1], axis=1))


def _per_channel(store: Store, prefix: str) -> F64:
    scale = store.numbers(prefix + "weight_scale", "F32", "BF16")
    assert scale.shape[1] == 1
    return scale[:, 0]


def _zero(store: Store, name: str) -> None:
    assert not store.numbers(name).any(), f"{name} is not all zero"


def scale_bias(store: Store, prefix: str) -> F64:
    """Stored 8 * sum_k(q * scale) of a W4A8_DYNAMIC linear, its partial sums added: float64 [N]."""
    stored: F64 = store.numbers(prefix + "scale_bias", "F32").sum(axis=1)
    return stored


TYPES = {
    FLOAT: bf16.linear,
    "W8A8_DYNAMIC": _int8,
    "W8A8_MIX": _int8,
    "W8A8": _static_int8,
    "W4A8_DYNAMIC": _int4,
    "W8A8_MXFP8": mx.fp8,
    "W4A8_MXFP": mx.fp4,
    "W4A4_MXFP4": mx.fp4,
    "W4A16_MXFP4": mx.fp4,
    "WFP8AFP8_DYNAMIC": _fp8_per_channel,
    "W8A8FP8_DYNAMIC": _fp8_per_channel,
    "W4A16": compressed_tensors.packed_int4,
}
