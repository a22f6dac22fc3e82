"""`show`: what it says of generated checkpoints, held against what was written and against headers read by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.command import run
from formats.generate.checkpoint import generate
from formats.generate.malformed import plant
from formats.generate.malformed_tensors import TENSOR_FAULTS
from formats.generate.recipes import RECIPES
from formats.readings.store import Store

from vllm_megamoe.cli.checkpoint.schema import ShowReport


def shown(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """`show FOLDER --json`, parsed and held against the schema."""
    found = run("show", str(folder), *arguments, "--json")
    assert found.exit_code == code, found.output
    ShowReport.model_validate_json(found.stdout)
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


@pytest.mark.parametrize("name", ["ms-w4a8-dynamic", "ct-w8a8-mixtral", "bf16-halves", "fp8-block-step", "gptq-group"])
def test_sizes_and_dtypes_are_those_of_the_files(tmp_path: Path, name: str) -> None:
    checkpoint = generate(RECIPES[name], tmp_path / "c", fill="noise")
    store, report = Store.open(checkpoint.folder), shown(checkpoint.folder)
    assert report["bytes"] == sum(raw.bits.nbytes for raw in store.tensors.values())
    for layer in report["layers"]:
        block = checkpoint.prefixes[layer["layer"]]
        mine = {n: raw for n, raw in store.tensors.items() if n.startswith(block) and "gate.weight" not in n}
        assert layer["bytes"] == sum(raw.bits.nbytes for raw in mine.values())
        assert layer["bytes_per_expert"] == layer["bytes"] // checkpoint.shape.experts
        assert sum(part["tensors"] for part in layer["parts"]) == len(mine)
        assert {dtype for part in layer["parts"] for dtype in part["dtype"].split(", ")} == {
            raw.dtype for raw in mine.values()
        }
        assert (layer["num_experts"], layer["format"]) == (checkpoint.shape.experts, checkpoint.recipe.format)


def test_scale_ranges_name_the_tensors_that_hold_them(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c", fill="noise")
    store = Store.open(checkpoint.folder)
    for layer in shown(checkpoint.folder)["layers"]:
        block = checkpoint.prefixes[layer["layer"]]
        scales = {n: raw.numbers() for n, raw in store.tensors.items() if n.startswith(block) and n.endswith("_scale")}
        (found,) = [scale for scale in layer["scales"] if scale["part"] == "weight_scale"]
        assert found["least"] == min(values.min() for values in scales.values()) == scales[found["least_in"]].min()
        assert found["most"] == max(values.max() for values in scales.values()) == scales[found["most_in"]].max()


def test_e8m0_scales_are_shown_as_the_powers_that_they_mean(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["ct-mxfp4"], tmp_path / "c", fill="noise")
    store = Store.open(checkpoint.folder)
    (layer,) = shown(checkpoint.folder, "--layers", "1")["layers"]
    block = checkpoint.prefixes[1]
    bits = np.concatenate(
        [raw.bits.ravel() for n, raw in store.tensors.items() if n.startswith(block) and n.endswith("_scale")]
    )
    (found,) = layer["scales"]
    assert (found["least"], found["most"]) == (2.0 ** (int(bits.min()) - 127), 2.0 ** (int(bits.max()) - 127))


@pytest.mark.parametrize("fault", ["scale-nan", "scale-zero", "scale-negative", "scale-infinite", "tensor-missing"])
def test_a_malformed_checkpoint_ends_with_1_and_is_named(tmp_path: Path, fault: str) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c", fill="noise")
    planted = plant(TENSOR_FAULTS[fault], checkpoint)
    assert planted is not None
    (problem,) = [p for p in shown(checkpoint.folder, code=1)["problems"] if planted.tensors[0] in p]
    assert planted.file in problem
    assert "; expected " in problem


def test_layers_and_headers_alone(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c")
    every = shown(checkpoint.folder)["layers"]
    some = shown(checkpoint.folder, "--layers", "0,1-1", "--headers-only")["layers"]
    assert [layer["layer"] for layer in some] == [0, 1]
    assert all(layer["scales"] for layer in every)
    assert not any(layer["scales"] for layer in some)
    for wrong in ("x", "1-", "900", ""):
        assert run("show", str(checkpoint.folder), "--layers", wrong).exit_code == 2


def test_products_are_the_plans_own_answer(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["bf16"], tmp_path / "c")
    runs = {run["profile"]: run for run in shown(checkpoint.folder)["layers"][0]["runs"]}
    assert (runs["none"]["use_case"], runs["none"]["loss"], runs["none"]["refused"]) == ("a16w16", "", "")
    assert "max_padding_overhead" in runs["a3@9.1"]["refused"]


def test_the_table_names_all_of_it(tmp_path: Path) -> None:
    checkpoint = generate(RECIPES["ms-w8a8-dynamic"], tmp_path / "c")
    text = run("show", str(checkpoint.folder)).output
    for word in ("msModelSlim W8A8_DYNAMIC", "weight_scale", "Run as", "950@9.2", "Nothing is malformed"):
        assert word in text


def test_a_loss_is_of_weights_and_of_outputs(tmp_path: Path) -> None:
    """docs/checkpoints.md: BF16 to A8W8-FP, which products of the 950 take."""
    checkpoint = generate(RECIPES["bf16"], tmp_path / "c")
    cells = run("show", str(checkpoint.folder), "--requant", "allow").output.replace("│", " ").split()
    expected = "a8w8-fp, lossy: 2.8 to 3.2 % of the weights' rms, a layer's output 7.2 to 8.7 %; of Gaussian weights"
    assert expected in " ".join(cells)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_no_checkpoint_is_wrong_usage(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    found = run("show", str(tmp_path / name))
    assert found.exit_code == 2
    assert name in found.output


def test_every_fixture_is_shown(shared_dir: Path) -> None:
    for folder in sorted((shared_dir / "fixtures").glob("*__s0")):
        assert shown(folder)["layers"], folder.name


def test_help_and_plan_import_no_torch() -> None:
    code = (
        "import sys; from vllm_megamoe.cli import app\n"
        "assert not {'torch', 'safetensors', 'matplotlib'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
