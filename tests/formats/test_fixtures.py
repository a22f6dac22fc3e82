"""The readings proved on files that real tools wrote: each projection lies at the stated distance from its original,
and planted faults of a reading do not.

The distance is relative Frobenius: |reading - original| / |original|. `manifest.json` states it for every projection of
every expert, computed by whoever made the fixtures; a reading must reproduce it to the printed digits.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from formats import controls
from formats.fixtures import BY_FOLDER, FIXTURES, Fixture
from formats.readings import msmodelslim
from formats.readings.experts import Layer
from formats.readings.layer import read_layer
from formats.readings.names import names_of
from formats.readings.numbers import F64
from formats.readings.store import Store

QUANTISED = [fixture for fixture in FIXTURES if fixture.format != "bf16"]
PACKED = [f for f in QUANTISED if f.kind.startswith(("mxfp4", "int4", "nvfp4")) and not f.format.endswith("w4a8")]
W4A8 = [f for f in QUANTISED if f.format == "msmodelslim-w4a8-dynamic"]
LAST_DIGIT = 1.5e-5
"""The manifests print five decimals: half a unit of rounding, and one of float32 arithmetic where they used it."""


def by_folder(fixture: Fixture) -> str:
    return fixture.folder


@cache
def _store(folder: Path) -> Store:
    return Store.open(folder)


def _open(shared_dir: Path, folder: str) -> Store:
    return _store(shared_dir / "fixtures" / f"{folder}__s0")


def _read(shared_dir: Path, fixture: Fixture, layer: int, store: Store | None = None) -> Layer:
    return read_layer(store or _open(shared_dir, fixture.folder), layer, fixture.format, fixture.shared)


def _original(shared_dir: Path, fixture: Fixture, layer: int) -> Layer:
    return read_layer(_open(shared_dir, fixture.base), layer, "bf16", "bf16" if fixture.shared else None)


def distance(values: F64, original: F64) -> float:
    return float(np.sqrt(np.square(values - original).sum() / np.square(original).sum()))


def _distances(layer: Layer, original: Layer) -> list[float]:
    """Of each projection of each routed expert."""
    return [
        distance(read.values, true.values)
        for expert, other in zip(layer.experts, original.experts, strict=True)
        for read, true in zip(expert, other, strict=True)
    ]


def test_every_fixture_has_a_row(shared_dir: Path) -> None:
    folders = {path.name.removesuffix("__s0") for path in (shared_dir / "fixtures").iterdir() if path.is_dir()}
    assert folders == set(BY_FOLDER)


@pytest.mark.parametrize("fixture", QUANTISED, ids=by_folder)
def test_a_reading_lies_at_the_stated_distance(shared_dir: Path, fixture: Fixture) -> None:
    low, high = fixture.frobenius
    for layer in fixture.layers:
        read, original = _read(shared_dir, fixture, layer), _original(shared_dir, fixture, layer)
        found = _distances(read, original)
        assert low <= min(found), found
        assert max(found) <= high, found
        assert all(
            e.gate.bias is None or np.array_equal(e.gate.bias, o.gate.bias)
            for e, o in zip(read.experts, original.experts, strict=True)
        )


@pytest.mark.parametrize("fixture", QUANTISED, ids=by_folder)
def test_a_reading_reproduces_the_manifest(shared_dir: Path, fixture: Fixture) -> None:
    manifest = json.loads((shared_dir / "fixtures" / f"{fixture.folder}__s0" / "manifest.json").read_text())
    stated = manifest["dequant_vs_bf16"]
    names = names_of(_open(shared_dir, fixture.folder))
    for layer in fixture.layers:
        read, original = _read(shared_dir, fixture, layer), _original(shared_dir, fixture, layer)
        prefixes = [f"{names.prefix(layer)}experts.{e}." for e in range(len(read.experts))]
        prefixes += [names.prefix(layer) + names.shared] * len(read.shared)
        experts = zip(prefixes, read.experts + read.shared, original.experts + original.shared, strict=True)
        for prefix, expert, other in experts:
            for name, projection, true in zip(names.projections, expert, other, strict=True):
                entry = stated[f"{prefix}{name}.weight"]
                assert distance(projection.values, true.values) == pytest.approx(entry["rel_fro"], abs=LAST_DIGIT)
                off = np.abs(projection.values - true.values).max(axis=1) / np.abs(true.values).max(axis=1)
                assert off.max() == pytest.approx(entry["max_abs_err_over_row_absmax"], abs=LAST_DIGIT)


@pytest.mark.parametrize("fixture", FIXTURES, ids=by_folder)
def test_codes_are_given_where_a_quantised_use_case_is_exact(shared_dir: Path, fixture: Fixture) -> None:
    kinds = {"int8": "int8", "int4": "int4", "int4-two-stage": "int8"}
    mx = {"mxfp8": "e4m3", "mxfp4": "e2m1", "mxfp4-a4": "e2m1", "fp8-block-ue8m0": "e4m3"}
    expected = {**kinds, **mx}.get(fixture.kind)
    for layer in fixture.layers:
        for expert in _read(shared_dir, fixture, layer).experts:
            for projection in expert:
                assert (projection.codes.kind if projection.codes else None) == expected
                if projection.codes:
                    np.testing.assert_array_equal(projection.codes.values(), projection.values)


@pytest.mark.parametrize("fixture", W4A8, ids=by_folder)
def test_scale_bias_is_eight_times_the_sum(shared_dir: Path, fixture: Fixture) -> None:
    """In float32, as the tool computed it: sum of at most 512 terms of up to 8 * scale."""
    store = _open(shared_dir, fixture.folder)
    names = names_of(store)
    for layer in fixture.layers:
        for e, expert in enumerate(_read(shared_dir, fixture, layer).experts):
            for name, projection in zip(names.projections, expert, strict=True):
                stored = msmodelslim.scale_bias(store, f"{names.prefix(layer)}experts.{e}.{name}.")
                assert projection.codes is not None
                k = projection.values.shape[1]
                bound = 2.0**-24 * k * 8 * np.abs(projection.values).sum(axis=1)
                assert np.all(np.abs(stored - 8 * projection.values.sum(axis=1)) <= bound)
                assert np.abs(stored).max() > 1000 * bound.max(), "the bound would accept anything"


class TestControls:
    """Faults that a reading could have are far outside the stated distance."""

    @pytest.mark.parametrize("fixture", PACKED, ids=by_folder)
    def test_swapped_nibbles(self, shared_dir: Path, fixture: Fixture) -> None:
        store = controls.swapped_nibbles(_open(shared_dir, fixture.folder))
        self._far(shared_dir, fixture, _read(shared_dir, fixture, fixture.layers[0], store), 1.0)

    @pytest.mark.parametrize("fixture", QUANTISED, ids=by_folder)
    def test_scales_off_by_one(self, shared_dir: Path, fixture: Fixture) -> None:
        store = controls.scales_off_by_one(_open(shared_dir, fixture.folder))
        self._far(shared_dir, fixture, _read(shared_dir, fixture, fixture.layers[0], store), 0.05)

    @pytest.mark.parametrize("fixture", FIXTURES, ids=by_folder)
    @pytest.mark.parametrize(
        "fault", [controls.exchanged_experts, controls.exchanged_halves, controls.interleaved_halves]
    )
    def test_exchanged(self, shared_dir: Path, fixture: Fixture, fault) -> None:  # type: ignore[no-untyped-def]
        layer = fault(_read(shared_dir, fixture, fixture.layers[0]))
        found = _distances(layer, _original(shared_dir, fixture, fixture.layers[0]))
        assert max(found) > 1.0

    @pytest.mark.parametrize("fixture", [f for f in FIXTURES if "_ns__" not in f.folder], ids=by_folder)
    def test_transposed(self, shared_dir: Path, fixture: Fixture) -> None:
        layer = controls.transposed(_read(shared_dir, fixture, fixture.layers[0]))
        self._far(shared_dir, fixture, layer, 1.0)

    @staticmethod
    def _far(shared_dir: Path, fixture: Fixture, layer: Layer, at_least: float) -> None:
        found = _distances(layer, _original(shared_dir, fixture, fixture.layers[0]))
        assert min(found) > max(at_least, 1.3 * fixture.frobenius[1]), found
