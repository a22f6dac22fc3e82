"""Microscaling formats: E4M3 or E2M1 codes, one E8M0 byte per 32 inputs, under the names that each tool uses.

Sources: facts/checkpoints.md 3.2, 3.3, 3.5, 3.6, 3.8, 3.10 to 3.12. Value: element * 2^(byte - 127). E2M1 codes lie in
pairs along K, even k in the low nibble, in every tool. The names:

| who | codes | scales |
|---|---|---|
| msModelSlim, ModelOpt, Quark | `weight` (MXFP4: U8 [N, K/2]) | `weight_scale` U8 |
| compressed-tensors, AutoRound | MXFP8 `weight`, MXFP4 `weight_packed` | `weight_scale` U8 |
| DeepSeek-V4 | `weight` I8 [N, K/2] | `scale` F8_E8M0 |
| MiniMax-M3 | `weight` | `weight_scale_inv` U8: an E8M0 byte in spite of its name |
| gpt-oss | `gate_up_proj_blocks` U8 [E, 2I, H/32, 16] | `gate_up_proj_scales` U8 [E, 2I, H/32] |

gpt-oss: rows of gate and up alternate (gate even, up odd), and each expert carries biases.
"""

import numpy as np
from formats.readings.experts import Codes, Expert, Projection
from formats.readings.names import names_of
from formats.readings.nibbles import pairs_along_k
from formats.readings.store import Store

BYTES = ("U8", "F8_E8M0")


def fp8(store: Store, prefix: str) -> Projection:
    """MXFP8 under `weight` and `weight_scale`."""
    return _mxfp8(store, prefix + "weight", prefix + "weight_scale")


def fp8_scale_inv(store: Store, prefix: str) -> Projection:
    """MXFP8 of MiniMax-M3: the bytes are named `weight_scale_inv`."""
    return _mxfp8(store, prefix + "weight", prefix + "weight_scale_inv")


def fp4(store: Store, prefix: str) -> Projection:
    """MXFP4 under `weight`."""
    return _mxfp4(store, prefix + "weight", prefix + "weight_scale")


def fp4_packed(store: Store, prefix: str) -> Projection:
    """MXFP4 under `weight_packed`."""
    return _mxfp4(store, prefix + "weight_packed", prefix + "weight_scale")


def fp4_deepseek_v4(store: Store, prefix: str) -> Projection:
    """MXFP4 of DeepSeek-V4: int8 bytes and e8m0 scales."""
    return _mxfp4(store, prefix + "weight", prefix + "scale")


def gpt_oss(store: Store, layer: int | str) -> list[Expert]:
    """gpt-oss blocks: all experts of a layer, biases beside."""
    block = names_of(store).prefix(layer) + "experts."
    gate_up = store.bits(block + "gate_up_proj_blocks", "U8")
    gate_up_scale = store.bits(block + "gate_up_proj_scales", "U8")
    gate_up_bias = store.numbers(block + "gate_up_proj_bias", "BF16")
    down = store.bits(block + "down_proj_blocks", "U8")
    down_scale = store.bits(block + "down_proj_scales", "U8")
    down_bias = store.numbers(block + "down_proj_bias", "BF16")
    experts = []
    for e in range(len(gate_up)):
        both = pairs_along_k(gate_up[e].reshape(gate_up.shape[1], -1))
        own = Codes("e2m1", pairs_along_k(down[e].reshape(down.shape[1], -1)), down_scale[e])
        gate, up = (Codes("e2m1", both[first::2], gate_up_scale[e, first::2]) for first in (0, 1))
        experts.append(
            Expert(
                Projection(gate.values(), gate, gate_up_bias[e, 0::2]),
                Projection(up.values(), up, gate_up_bias[e, 1::2]),
                Projection(own.values(), own, down_bias[e]),
            )
        )
    return experts


def _mxfp8(store: Store, weight: str, scale: str) -> Projection:
    return Projection.of(Codes("e4m3", store.bits(weight, "F8_E4M3"), store.bits(scale, *BYTES)))


def _mxfp4(store: Store, weight: str, scale: str) -> Projection:
    packed = store.bits(weight, "U8", "I8").view(np.uint8)
    return Projection.of(Codes("e2m1", pairs_along_k(packed), store.bits(scale, *BYTES)))
