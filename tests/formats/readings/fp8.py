"""FP8 as model vendors publish it: tiles of 128 x 128 or one scale per tensor, E4M3 codes, scales that multiply.

Sources: facts/checkpoints.md 3.4, 3.5, 3.9, 3.11.

* block: `weight` F8_E4M3 [N, K], `weight_scale_inv` [ceil(N/128), ceil(K/128)] F32, BF16, or F8_E8M0 (ue8m0); in spite
  of its name w = weight * scale. Where N or K is no multiple of 128 the last tile is partial.
* DeepSeek-V4's shared experts: the same under `scale` F8_E8M0.
* Step-3.5: all experts in one tensor, `weight` [E, N, K], `weight_scale_inv` [E, ceil(N/128), ceil(K/128)].
* per tensor (ModelOpt FP8, Hunyuan): `weight_scale` of one number, gate and up each with their own; or per channel
  (ModelOpt, Quark): `weight_scale` [N]. `input_scale` is about activations.
* ModelOpt FP8_PB_WO: `weight_scale` F32 [N/128, 1, K/128, 1].
"""

import numpy as np
from formats.readings.experts import Expert, Projection, expand, scaled_floats
from formats.readings.names import LONG, names_of
from formats.readings.numbers import F64, Bits8
from formats.readings.store import Store

TILE = 128
SCALES = ("F32", "BF16", "F16", "F8_E8M0")


def block(store: Store, prefix: str) -> Projection:
    """Tiles under `weight_scale_inv`."""
    return _tiles(store.bits(prefix + "weight", "F8_E4M3"), store.numbers(prefix + "weight_scale_inv", *SCALES))


def block_deepseek_v4(store: Store, prefix: str) -> Projection:
    """Tiles under `scale`."""
    return _tiles(store.bits(prefix + "weight", "F8_E4M3"), store.numbers(prefix + "scale", "F8_E8M0", "F32"))


def block_modelopt(store: Store, prefix: str) -> Projection:
    """Tiles under `weight_scale` [N/128, 1, K/128, 1]."""
    scale = store.numbers(prefix + "weight_scale", "F32")
    assert scale.ndim == 4
    return _tiles(store.bits(prefix + "weight", "F8_E4M3"), scale[:, 0, :, 0])


def block_per_projection(store: Store, layer: int | str) -> list[Expert]:
    """Step-3.5: tiles in three dimensions."""
    prefix = names_of(store).prefix(layer)
    projections = []
    for name in LONG:
        codes = store.bits(f"{prefix}{name}.weight", "F8_E4M3")
        scale = store.numbers(f"{prefix}{name}.weight_scale_inv", *SCALES)
        projections.append([_tiles(codes[e], scale[e]) for e in range(len(codes))])
    return [Expert(*three) for three in zip(*projections, strict=True)]


def rows(store: Store, prefix: str) -> Projection:
    """One scale per tensor, or one per output channel."""
    codes = store.bits(prefix + "weight", "F8_E4M3")
    scale = store.numbers(prefix + "weight_scale", *SCALES).reshape(-1)
    assert len(scale) in (1, len(codes))
    return scaled_floats("e4m3", codes, np.broadcast_to(scale[:, None], codes.shape))


def _tiles(codes: Bits8, scale: F64) -> Projection:
    n, k = codes.shape
    assert scale.shape == (-(-n // TILE), -(-k // TILE))
    return scaled_floats("e4m3", codes, expand(scale, n, k, TILE, TILE))
