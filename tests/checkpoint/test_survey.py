"""The survey of a folder: silent about every sound checkpoint, and every malformed one by file and tensor.

The oracle of the malformed ones is what the fault's own code says it did (formats/generate/malformed.py).
"""

import json
from pathlib import Path

import pytest
import torch
from checkpoint.surveyed import problems_of, survey_of
from formats.generate.checkpoint import generate
from formats.generate.malformed import FILE_FAULTS, Fault, plant
from formats.generate.malformed_tensors import DESCRIPTION_FAULTS, TENSOR_FAULTS
from formats.generate.recipes import RECIPES
from formats.generate.surgery import Place
from formats.test_malformed import HOSTS
from safetensors.torch import save_file

from vllm_megamoe.checkpoint.headers import read_headers
from vllm_megamoe.testing.formats.address import Shape

FAULTS: dict[str, Fault] = {**FILE_FAULTS, **TENSOR_FAULTS, **DESCRIPTION_FAULTS}
IN_VALUES = (
    "scale-nan",
    "scale-zero",
    "scale-negative",
    "scale-infinite",
    "code-nan",
    "code-out-of-range",
    "offset-not-zero",
    "scale-bias-wrong",
    "weight-shape-wrong",
    "g-idx-outside",
    "weight-g-idx-outside",
)
"""Faults that no header shows: who reads the tensors finds them."""
IN_CONFIG = ("description-no-mapping",)
"""Found by who reads config files, before any survey."""
GROUPS_TOLD_BY_SCALES = ("gptq-group-actorder", "awq-group")
"""A scale of one group less is one of other groups: only values tell."""


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_sound_checkpoint_has_no_problem(tmp_path: Path, name: str) -> None:
    assert problems_of(generate(RECIPES[name], tmp_path / "c", fill="noise").folder) == []


def test_no_fixture_has_a_problem(shared_dir: Path) -> None:
    folders = sorted(folder for folder in (shared_dir / "fixtures").iterdir() if folder.is_dir())
    assert folders
    assert {folder.name: problems_of(folder) for folder in folders} == {folder.name: [] for folder in folders}


OFTEN = ("ms-w4a8-dynamic", "fp8-block-step", "ct-w8a8-mixtral", "bf16-halves")
"""Per expert, in one tensor, and per projection; one file and several."""


@pytest.mark.parametrize("hosts", [OFTEN, pytest.param(HOSTS, marks=pytest.mark.full)], ids=["often", "all"])
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in IN_VALUES + IN_CONFIG])
def test_a_malformed_checkpoint_is_named_by_file_and_tensor(tmp_path: Path, fault: str, hosts: tuple[str, ...]) -> None:
    asked = 0
    for host in hosts:
        if fault == "scale-short" and host in GROUPS_TOLD_BY_SCALES:
            continue
        checkpoint = generate(RECIPES[host], tmp_path / host, fill="noise")
        planted = plant(FAULTS[fault], checkpoint)
        if planted is None:
            continue
        asked += 1
        found = problems_of(checkpoint.folder)
        names = planted.tensors or ("",)
        assert any(planted.file in text and any(name in text for name in names) for text in found), (planted, found)
        assert all("; expected " in text for text in found)
    assert asked or hosts == OFTEN


def test_nothing_is_executed_or_read_outside_of_the_folder(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c", fill="noise")
    plant(FAULTS["index-leaves-folder"], checkpoint)
    headers = read_headers(checkpoint.folder)
    assert all((checkpoint.folder / entry.file).is_file() for entry in headers.entries.values())
    pickled = generate(RECIPES["bf16"], tmp_path / "p", fill="noise")
    plant(FAULTS["pickle-only"], pickled)
    assert problems_of(pickled.folder)
    assert not (pickled.folder / "executed").exists()


@pytest.mark.parametrize("name", ["/etc/passwd.safetensors", "..", "a/b.safetensors", "x\0.safetensors", "", 7])
def test_an_index_names_files_of_the_folder_alone(tmp_path: Path, name: object) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c", fill="noise")
    place = Place.of(checkpoint)
    assert place.index is not None
    content = json.loads(place.index.read_text())
    content["weight_map"][place.weight] = name
    place.index.write_text(json.dumps(content))
    (found,) = [text for text in problems_of(checkpoint.folder) if repr(name) in text]
    assert place.weight in found


def test_all_faults_are_told_and_those_alike_once(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c", Shape(128, 64, 8), "noise")
    place = Place.of(checkpoint)
    block = place.prefix.split("experts.")[0]
    for expert in (1, 4, 6):
        place.remove(f"{block}experts.{expert}.up_proj.weight_scale")
    place.change(f"{block}experts.2.down_proj.weight", lambda w: w[:-2])
    found = [problem for problem in survey_of(checkpoint.folder).problems if problem.file.endswith(".safetensors")]
    missing = [problem for problem in found if "missing" in problem.got]
    assert sorted(name for problem in missing for name in (problem.tensor, *problem.alike)) == [
        f"{block}experts.{expert}.up_proj.weight_scale" for expert in (1, 4, 6)
    ]
    assert [problem.tensor for problem in found if "shape" in problem.got] == [f"{block}experts.2.down_proj.weight"]


def test_what_an_index_may_leave_out(tmp_path: Path) -> None:
    """A file beside those of the index (a float MTP layer, say), and tensors of no expert: nothing is said of them."""
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c", fill="noise")
    save_file({"model.layers.9.mlp.experts.0.up_proj.weight": torch.ones(4)}, checkpoint.folder / "mtp.safetensors")
    Place.of(checkpoint).change_index(lambda where: {n: file for n, file in where.items() if "norm" not in n})
    assert problems_of(checkpoint.folder) == []
