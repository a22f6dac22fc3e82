"""The malformed checkpoints are malformed: readings that checked nothing would read other numbers, or they stop.

What a loader must say of each stands in Malformed; the later tests of the loaders take these as their parameters.
"""

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from formats.generate.checkpoint import Checkpoint, generate
from formats.generate.malformed import FILE_FAULTS, Fault, plant
from formats.generate.malformed_tensors import DESCRIPTION_FAULTS, TENSOR_FAULTS
from formats.generate.recipes import RECIPES
from formats.generate.surgery import Place, header_of
from formats.readings.layer import read_layer
from formats.readings.store import Store
from numpy.typing import NDArray

FAULTS: dict[str, Fault] = {**FILE_FAULTS, **TENSOR_FAULTS, **DESCRIPTION_FAULTS}
HOSTS = (
    "ms-w8a8-dynamic", "ms-w4a8-dynamic", "ms-w4a8-old", "ms-w4a8-mxfp", "ms-w8a8-mxfp8", "fp8-block",
    "fp8-block-step", "deepseek-v4", "minimax-m3-mxfp8", "ct-w8a8-mixtral", "ct-w4a8", "ct-w4a16-group-actorder",
    "ct-mxfp4", "ct-nvfp4", "quark-mxfp4", "modelopt-fp8", "gptq-group-actorder", "awq-group", "bf16", "bf16-halves",
)  # fmt: skip
"""One recipe of each kind of file."""


def _numbers(checkpoint: Checkpoint) -> list[NDArray[np.float64]]:
    store = Store.open(checkpoint.folder)
    return [
        projection.values
        for layer in checkpoint.layers
        for expert in read_layer(store, layer, checkpoint.layouts[layer]).experts
        for projection in expert
    ]


Hosts = Callable[[str], tuple[Checkpoint, list[NDArray[np.float64]]]]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """host -> its checkpoint, untouched, and the numbers in it; written once."""
    root = tmp_path_factory.mktemp("hosts")

    @cache
    def make(host: str) -> tuple[Checkpoint, list[NDArray[np.float64]]]:
        checkpoint = generate(RECIPES[host], root / host, fill="noise")
        return checkpoint, _numbers(checkpoint)

    return make


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one(tmp_path: Path, hosts: Hosts, fault: str) -> None:
    hit = [host for host in HOSTS if FAULTS[fault].applies(Place.of(hosts(host)[0]))]
    assert hit, "no checkpoint can have this fault"
    for host in hit:
        whole, good = hosts(host)
        shutil.copytree(whole.folder, tmp_path / host)
        checkpoint = replace(whole, folder=tmp_path / host)
        planted = plant(FAULTS[fault], checkpoint)
        assert planted is not None
        assert planted.what
        assert _files(checkpoint.folder) != _files(whole.folder)
        noticed = _notices(checkpoint, good)
        assert FAULTS[fault].visible in (None, noticed), f"{host}: {planted}"


def _notices(checkpoint: Checkpoint, good: list[NDArray[np.float64]]) -> bool:
    try:
        with np.errstate(invalid="ignore"):
            found = _numbers(checkpoint)
    except (AssertionError, AttributeError, IndexError, KeyError, OSError, TypeError, ValueError):
        return True
    return len(found) != len(good) or not all(np.array_equal(a, b) for a, b in zip(found, good, strict=True))


def _files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("host", HOSTS)
def test_the_place_of_a_fault_is_in_the_file(hosts: Hosts, host: str) -> None:
    place = Place.of(hosts(host)[0])
    assert place.weight in header_of(place.file_of(place.weight))
    assert place.scale is None or place.scale in header_of(place.file_of(place.scale))
    assert (place.scale is None) == host.startswith("bf16")


def test_the_pickle_would_run(tmp_path: Path) -> None:
    """Its program makes a folder: a loader's test sees by that folder whether anything was executed."""
    checkpoint = generate(RECIPES["bf16"], tmp_path / "c", fill="noise")
    assert plant(FAULTS["pickle-only"], checkpoint)
    assert not (checkpoint.folder / "executed").exists()
    pickle.loads((checkpoint.folder / "pytorch_model.bin").read_bytes())
    assert (checkpoint.folder / "executed").is_dir()
