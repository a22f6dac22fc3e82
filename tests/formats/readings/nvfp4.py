"""NVFP4: E2M1 codes in pairs along K, an E4M3 scale per 16 inputs, and one float32 for the tensor.

Sources: facts/checkpoints.md 3.3, 3.11. The tensor's float is the trap: compressed-tensors' `weight_global_scale`
DIVIDES, ModelOpt's `weight_scale_2` MULTIPLIES. Groups of 16 with E4M3 scales fit no use case of the operator exactly.
"""

import numpy as np
from formats.readings.experts import Projection
from formats.readings.nibbles import pairs_along_k
from formats.readings.numbers import F64, Bits8, e2m1_values
from formats.readings.store import Store

GROUP = 16


def compressed_tensors(store: Store, prefix: str) -> Projection:
    """`weight_packed`, `weight_scale`, and `weight_global_scale`, which divides."""
    top = store.numbers(prefix + "weight_global_scale", "F32").reshape(())
    packed = store.bits(prefix + "weight_packed", "U8")
    return _values(packed, store.numbers(prefix + "weight_scale", "F8_E4M3") / top)


def modelopt(store: Store, prefix: str) -> Projection:
    """`weight`, `weight_scale`, and `weight_scale_2`, which multiplies."""
    top = store.numbers(prefix + "weight_scale_2", "F32").reshape(())
    packed = store.bits(prefix + "weight", "U8")
    return _values(packed, store.numbers(prefix + "weight_scale", "F8_E4M3") * top)


def _values(packed: Bits8, scale: F64) -> Projection:
    return Projection(e2m1_values(pairs_along_k(packed)) * np.repeat(scale, GROUP, axis=1))
