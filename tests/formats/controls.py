"""Faults of a reading, planted into what is read, so that a test shows that it would see them.

Each returns a changed store or a changed layer; `applies` tells where a fault exists at all.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from formats.readings.experts import Expert, Layer, Projection
from formats.readings.store import Raw, Store
from numpy.typing import NDArray

PACKED = ("weight", "weight_packed", "qweight", "gate_up_proj_blocks", "down_proj_blocks")
SCALES = ("weight_scale", "weight_scale_inv", "scales", "scale", "gate_up_proj_scales", "down_proj_scales")


def _experts(store: Store, endings: tuple[str, ...]) -> list[str]:
    return [
        name for name in store.tensors if (".experts" in name or ".moe." in name) and name.rsplit(".", 1)[-1] in endings
    ]


def swapped_nibbles(store: Store) -> Store:
    """The two codes of each byte of the experts' packed weights exchanged."""

    def swap(bits: NDArray[Any]) -> NDArray[Any]:
        byte = np.ascontiguousarray(bits).view(np.uint8)
        return ((byte >> 4) | (byte << 4)).view(bits.dtype).reshape(bits.shape)

    names = _experts(store, PACKED)
    assert names
    return store.with_tensors({name: Raw(store.raw(name).dtype, swap(store.bits(name))) for name in names})


def scales_off_by_one(store: Store) -> Store:
    """E8M0 bytes one too high; other scales taken from the one stored before."""

    def shift(raw: Raw) -> Raw:
        if raw.dtype in ("U8", "F8_E8M0"):
            return Raw(raw.dtype, raw.bits + np.uint8(1))
        return Raw(raw.dtype, np.roll(raw.bits, 1))

    names = _experts(store, SCALES)
    assert names
    return store.with_tensors({name: shift(store.raw(name)) for name in names})


def exchanged_experts(layer: Layer) -> Layer:
    """Each expert under its neighbour's number."""
    return replace(layer, experts=[*layer.experts[1:], layer.experts[0]])


def exchanged_halves(layer: Layer) -> Layer:
    """Gate and up exchanged."""
    return replace(layer, experts=[Expert(e.up, e.gate, e.down) for e in layer.experts])


def interleaved_halves(layer: Layer) -> Layer:
    """Gate and up read as one tensor whose rows alternate, though they are halves (or the reverse)."""

    def mix(expert: Expert) -> Expert:
        both = np.concatenate([expert.gate.values, expert.up.values])
        return Expert(Projection(both[0::2]), Projection(both[1::2]), expert.down)

    return replace(layer, experts=[mix(expert) for expert in layer.experts])


def transposed(layer: Layer) -> Layer:
    """Each square projection transposed."""

    def turn(projection: Projection) -> Projection:
        square = projection.values.shape[0] == projection.values.shape[1]
        return Projection(projection.values.T if square else projection.values)

    return replace(layer, experts=[Expert(*(turn(p) for p in expert)) for expert in layer.experts])
