"""Writers and readings, which share nothing, agree to the last bit; and the index tensors prove what they should.

Writers draw codes and scales and say what they mean by the format's formula; readings take the files apart. Where both
come to the same float64 values, codes and scales, in shapes that are square for no projection, each can be trusted.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats import controls
from formats.generate.checkpoint import Checkpoint, generate
from formats.generate.recipes import RECIPES
from formats.readings.experts import Layer, Projection
from formats.readings.layer import read_layer
from formats.readings.store import Store
from numpy.typing import NDArray

from vllm_megamoe.testing.formats.address import BF16, E2M1, E4M3, INT4, INT8, Shape, digits_needed, stir, unstir
from vllm_megamoe.testing.formats.scheme import Written

UNREAD = {"ms-w4a4-dualscale"}
"""Of which no reading exists, because its meaning is not settled; loaders refuse it."""
READABLE = sorted(set(RECIPES) - UNREAD)
ODD = Shape(160, 96, 3)
"""Five and three groups of 32: an odd number of E8M0 bytes in a row, tiles of 128 that end early."""
PURE = [name for name in READABLE if not RECIPES[name].mixed]
SPELLING = {
    "bf16": BF16,
    "int8": INT8,
    "int4": INT4,
    "mxfp8": E4M3,
    "fp8-block-ue8m0": E4M3,
    "mxfp4": E2M1,
    "mxfp4-a4": E2M1,
}
SPELT = [name for name in PURE if SPELLING.get(RECIPES[name].kind) is RECIPES[name].scheme.alphabet]
"""Those whose readings give codes as stored; of the others equality with what was written is the proof."""
FOUR_BITS = [
    name
    for name in READABLE
    if RECIPES[name].kind.startswith(("int4", "mxfp4", "nvfp4"))
    and RECIPES[name].scheme.layout not in ("compressed-tensors-w4a8", "compressed-tensors-w4a8-group")
    and "old" not in name
]
ONE_SCALE = {"fp8-tensor", "ct-w8a8-tensor", "ct-fp8-tensor", "quark-int8-tensor", "quark-fp8-tensor", "modelopt-fp8"}
"""One scale for a tensor: there is none beside it to take."""
Maker = Callable[[str], Checkpoint]
SCALED = [name for name in READABLE if RECIPES[name].scheme.layout not in ("bf16", "fp16", "msmodelslim-w8a8")]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> "Maker":
    """name -> checkpoint of its recipe in its own shape, written once."""
    root = tmp_path_factory.mktemp("formats")
    return cache(lambda name: generate(RECIPES[name], root / name))


def read(checkpoint: Checkpoint, store: Store | None = None) -> dict[int | str, Layer]:
    """Every layer by the readings."""
    opened = store or Store.open(checkpoint.folder)
    return {
        layer: read_layer(opened, layer, checkpoint.layouts[layer], checkpoint.shared_layout)
        for layer in checkpoint.layers
    }


def pairs(checkpoint: Checkpoint, layers: dict[int | str, Layer]) -> list[tuple[Projection, Written]]:
    """What was read beside what was written, routed and shared."""
    result: list[tuple[Projection, Written]] = []
    for layer, found in layers.items():
        experts = [*zip(found.experts, checkpoint.layers[layer], strict=True)]
        if checkpoint.shared_layout:
            experts += zip(found.shared, [checkpoint.shared[layer]], strict=True)
        result += [pair for expert, other in experts for pair in zip(expert, other, strict=True)]
    return result


def same(projection: Projection, written: Written) -> bool:
    """Values, codes, scales and biases equal."""
    if not np.array_equal(projection.values, written.values):
        return False
    if (projection.bias is None) != (written.bias is None):
        return False
    if projection.bias is not None and not np.array_equal(projection.bias, written.bias):
        return False
    codes = projection.codes
    if codes is None or written.kind is None:
        return codes is None and written.kind is None
    return (
        codes.kind == written.kind
        and np.array_equal(codes.codes, written.codes)
        and np.array_equal(codes.scale, written.scale)
    )


@pytest.mark.parametrize("name", READABLE)
def test_a_reading_returns_what_was_written(made: Maker, name: str) -> None:
    checkpoint = made(name)
    assert all(same(*pair) for pair in pairs(checkpoint, read(checkpoint)))


@pytest.mark.parametrize("name", READABLE)
def test_odd_shapes_and_noise(tmp_path: Path, name: str) -> None:
    checkpoint = generate(RECIPES[name], tmp_path / "c", ODD, "noise")
    assert all(same(*pair) for pair in pairs(checkpoint, read(checkpoint)))


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_a_format_without_meaning_has_no_reading(made: Maker, name: str) -> None:
    assert RECIPES[name].refused
    with pytest.raises(KeyError, match="DUALSCALE"):
        read(made(name))


@pytest.mark.parametrize("name", SPELT)
def test_layers_spell_every_address_once(made: Maker, name: str) -> None:
    """What was read, layer by layer, spells the addresses 0, 1, 2 ... of all routed weights in their order."""
    checkpoint = made(name)
    spelling = np.array(RECIPES[name].scheme.alphabet.spelling)
    assert np.all(np.diff(spelling) > 0)
    experts = (checkpoint.shape.experts + 1) * 3 * checkpoint.shape.hidden * checkpoint.shape.intermediate
    digits = digits_needed(experts, len(spelling))
    assert digits <= checkpoint.planes
    layers = list(read(checkpoint).values())[:digits]
    words = np.zeros(0, np.int64)
    for plane, layer in enumerate(layers):
        codes = np.concatenate([stored_codes(p).ravel() for expert in layer.experts for p in expert])
        digit = np.searchsorted(spelling, codes.astype(np.int64))
        np.testing.assert_array_equal(spelling[digit], codes)
        found = digit * len(spelling) ** plane
        words = found if plane == 0 else words + found
    np.testing.assert_array_equal(unstir(words, len(spelling), digits), np.arange(len(words)))


def stored_codes(projection: Projection) -> NDArray[Any]:
    """Codes, or for BF16 the bits of the values."""
    if projection.codes is not None:
        return projection.codes.codes
    return projection.values.astype(np.float32).view(np.uint32) >> 16


@pytest.mark.parametrize("base", [12, 15, 16, 64, 127, 253, 256, 1024, 2048])
def test_stirring_is_reversible(base: int) -> None:
    digits = digits_needed(30_000, base)
    addresses = np.arange(min(base**digits, 100_000))
    words = stir(addresses, base, digits)
    assert len(np.unique(words)) == len(words)
    np.testing.assert_array_equal(unstir(words, base, digits), addresses)


SCALE_SUFFIXES = (
    "weight_scale",
    "weight_scale_inv",
    "scale",
    "scales",
    "weight_scale_second",
    "weight_scale_2",
    "weight_global_scale",
    "deq_scale",
)


@pytest.mark.parametrize("name", [name for name in SCALED if name in PURE])
def test_every_scale_is_another_one(made: Maker, name: str) -> None:
    """No two channels, groups, tiles or tensors have the same scales in all layers that spell."""
    checkpoint = made(name)
    layers = [
        [w for expert in experts for w in expert]
        for layer, experts in checkpoint.layers.items()
        if layer not in checkpoint.drafts
    ][: checkpoint.planes]
    found = [suffix for suffix in SCALE_SUFFIXES if suffix in layers[0][0].tensors]
    assert found
    for suffix in found:
        columns = [np.concatenate([w.tensors[suffix].double().numpy().ravel() for w in layer]) for layer in layers]
        together = np.stack(columns, axis=1)
        assert len(np.unique(together, axis=0)) == len(together), suffix


class TestControls:
    """A reading with a planted fault returns something else than what was written."""

    @pytest.mark.parametrize("name", FOUR_BITS)
    def test_swapped_nibbles(self, made: Maker, name: str) -> None:
        self._differs(made(name), controls.swapped_nibbles)

    @pytest.mark.parametrize("name", [name for name in SCALED if name not in ONE_SCALE])
    def test_scales_off_by_one(self, made: Maker, name: str) -> None:
        self._differs(made(name), controls.scales_off_by_one)

    @pytest.mark.parametrize("name", READABLE)
    @pytest.mark.parametrize("fault", [controls.exchanged_experts, controls.exchanged_halves])
    def test_exchanged(self, made: Maker, name: str, fault: Callable[[Layer], Layer]) -> None:
        checkpoint = made(name)
        layers = {layer: fault(found) for layer, found in read(checkpoint).items()}
        assert not all(same(*pair) for pair in pairs(checkpoint, layers))

    @staticmethod
    def _differs(checkpoint: Checkpoint, fault: Callable[[Store], Store]) -> None:
        store = fault(Store.open(checkpoint.folder))
        wrong = [not same(*pair) for pair in pairs(checkpoint, read(checkpoint, store))]
        assert sum(wrong) > len(wrong) / 3
