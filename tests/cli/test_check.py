"""`check`: sound checkpoints pass, against their original and by themselves; damaged ones fail where the damage is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli import pairs
from cli.command import run
from safetensors.torch import load_file

from vllm_megamoe.cli.checkpoint.schema import CheckReport


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The original under an empty name, and each kind."""
    root = tmp_path_factory.mktemp("pairs")
    return {kind: pairs.write(root / (kind or "bf16"), kind) for kind in ("", *pairs.QUANTISERS)}


def checked(*arguments: object, code: int = 0) -> dict[str, Any]:
    """`check ... --json`, parsed and held against the schema."""
    found = run("check", *map(str, arguments), "--json")
    assert found.exit_code == code, found.output
    CheckReport.model_validate_json(found.stdout)
    parsed: dict[str, Any] = json.loads(found.stdout)
    assert parsed["holds"] is (code == 0)
    return parsed


REQUIRED = {"name", "use_case", "weight_rel_err", "output_rel_err", "worst_expert", "worst_token"}


@pytest.mark.parametrize("kind", pairs.QUANTISERS)
def test_a_sound_checkpoint_passes_against_its_original(folders: dict[str, Path], kind: str) -> None:
    report = checked(folders[kind], "--against", folders[""], "--use-case", pairs.USE_CASES[kind])
    originals = {name: w.double().numpy() for name, w in pairs.originals().items()}
    for number, layer in enumerate(report["layers"]):
        assert set(layer) >= REQUIRED
        assert (layer["name"], layer["use_case"]) == (f"model.layers.{number}.mlp.experts", pairs.USE_CASES[kind])
        assert layer["weight_rel_err"] == pytest.approx(expected_loss(originals, number, kind), rel=1e-3)
        assert 0 < layer["weight_rel_err"] < layer["weight_bound"]
        assert 0 < layer["output_rel_err"] < layer["output_bound"]
        assert (layer["excess"], 0 <= layer["worst_expert"] < 4, 0 <= layer["worst_token"] < 32) == ([], True, True)


def expected_loss(originals: dict[str, Any], layer: int, kind: str) -> float:
    """From the quantiser's own codes, read here again."""
    off = size = 0.0
    for name, w in originals.items():
        if name.startswith(f"model.layers.{layer}."):
            parts = pairs.QUANTISERS[kind](w.astype(np.float32))
            off += float(((_read(kind, parts) - w) ** 2).sum())
            size += float((w**2).sum())
    return (off / size) ** 0.5


def _read(kind: str, parts: dict[str, torch.Tensor]) -> Any:
    scale = parts["weight_scale"]
    if kind == "W8A8_DYNAMIC":
        return parts["weight"].double().numpy() * scale.double().numpy()
    if kind == "W4A8_DYNAMIC":
        packed = parts["weight"].int()
        codes = torch.stack([((packed & 15) ^ 8) - 8, packed >> 4], dim=1).flatten(0, 1)
        return codes.double().numpy() * scale.double().numpy()
    factors = np.repeat(2.0 ** (scale.numpy().astype(np.float64) - 127), 32, axis=1)
    if kind == "MXFP8":
        return parts["weight"].double().numpy() * factors
    packed8 = parts["weight_packed"]
    nibbles = torch.stack([packed8 & 15, packed8 >> 4], dim=2).flatten(1)
    return pairs._value(nibbles, torch.uint8).double().numpy() * factors


@pytest.mark.parametrize("kind", pairs.QUANTISERS)
def test_an_exact_use_case_moves_no_weight(folders: dict[str, Path], kind: str) -> None:
    report = checked(folders[kind], "--use-case", pairs.USE_CASES[kind])
    assert [layer["weight_rel_err"] for layer in report["layers"]] == [0.0, 0.0]
    for layer in report["layers"]:
        # What quantised rows and activations predict, without the margin and the roundings beside it.
        predicted = (layer["output_bound"] - 2.0**-7) / 1.5
        assert 0.8 < layer["output_rel_err"] / predicted < 1.1


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_every_conversion_of_the_original_is_explained(folders: dict[str, Path], use_case: str) -> None:
    report = checked(folders[""], "--use-case", use_case, "--requant", "allow", "--layers", "1")
    (layer,) = report["layers"]
    assert (layer["weight_rel_err"] == 0) is (use_case == "a16w16")
    assert layer["weight_rel_err"] <= layer["weight_bound"]


Damage = Callable[[dict[str, torch.Tensor]], object]


@pytest.mark.parametrize("kind", pairs.QUANTISERS)
@pytest.mark.parametrize(
    ("damage", "experts"), [(pairs.swap_experts, (1, 2)), (pairs.swap_nibbles, (2,)), (pairs.shift_scales, (3,))]
)
def test_damage_is_found_where_it_is(
    tmp_path: Path, folders: dict[str, Path], kind: str, damage: Damage, experts: tuple[int, ...]
) -> None:
    if damage is pairs.swap_nibbles and kind in ("W8A8_DYNAMIC", "MXFP8"):
        assert "weight_packed" not in load_file(folders[kind] / "model.safetensors")  # a code fills a byte
        return
    folder = tmp_path / "damaged"
    shutil.copytree(folders[kind], folder)
    pairs.damage(folder, damage)
    report = checked(folder, "--against", folders[""], "--use-case", pairs.USE_CASES[kind], code=1)
    sound, hit = report["layers"]
    assert sound["excess"] == []
    assert [text.split(":")[0] for text in hit["excess"]] == [f"expert {expert}" for expert in experts]


def test_one_nibble_is_far_below_what_a_layer_shows(tmp_path: Path, folders: dict[str, Path]) -> None:
    """So the element's own bound finds it, not the matrix's."""
    folder = tmp_path / "damaged"
    shutil.copytree(folders["MXFP4"], folder)
    pairs.damage(folder, pairs.swap_nibbles)
    report = checked(folder, "--against", folders[""], "--use-case", "a8w4-fp", "--layers", "1", code=1)
    (layer,) = report["layers"]
    assert layer["weight_rel_err"] < layer["weight_bound"]
    assert "the element [" in layer["excess"][0]


def test_consent_and_usage(tmp_path: Path, folders: dict[str, Path]) -> None:
    found = run("check", str(folders[""]), "--use-case", "a8w8-int")
    assert found.exit_code == 2
    assert '"requant": "allow"' in found.output
    assert run("check", str(folders[""]), "--use-case", "a8w8").exit_code == 2
    assert run("check", str(folders["MXFP8"]), "--against", str(tmp_path)).exit_code == 2
    assert run("check", str(folders[""]), "--plot", str(tmp_path / "x.txt")).exit_code == 2


def test_the_devices_check_takes_no_checkpoint(folders: dict[str, Path]) -> None:
    for arguments in (["--backend", "cann", str(folders[""])], ["--backend", "npu", str(folders[""])], ["--json"]):
        assert run("check", *arguments).exit_code == 2


def test_another_model_is_no_original(tmp_path: Path, folders: dict[str, Path]) -> None:
    other = shutil.copytree(folders[""], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_experts": 3}))
    found = run("check", str(folders["MXFP8"]), "--against", str(other), "--use-case", "a8w8-fp", "--json")
    assert found.exit_code != 0
    assert "expert" in found.output


def test_rotated_weights_are_not_compared(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = shutil.copytree(folders["W8A8_DYNAMIC"], tmp_path / "rotated")
    file = folder / "quant_model_description.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"metadata": {"quarot": {"seed": 1}}}))
    found = run("check", str(folder), "--against", str(folders[""]), "--use-case", "a8w8-int")
    assert found.exit_code == 2
    assert "rotated" in found.output


def test_a_malformed_checkpoint_runs_nothing(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = shutil.copytree(folders["W8A8_DYNAMIC"], tmp_path / "c")
    name = f"{pairs.PLACE}1.up_proj.weight_scale"
    pairs.damage(folder, lambda tensors: tensors.pop(name))
    report = checked(folder, "--use-case", "a8w8-int", code=1)
    assert report["layers"] == []
    assert any(name in problem for problem in report["problems"])


def test_a_scale_that_is_no_number_is_named_by_its_file(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = shutil.copytree(folders["W8A8_DYNAMIC"], tmp_path / "c")
    name = f"{pairs.PLACE}1.up_proj.weight_scale"
    pairs.damage(folder, lambda tensors: tensors[name].fill_(float("nan")))
    report = checked(folder, "--use-case", "a8w8-int", code=1)
    assert [layer["layer"] for layer in report["layers"]] == [0]
    (problem,) = report["problems"]
    assert "model.safetensors" in problem
    assert name in problem


def test_a_weight_that_is_no_number_is_the_checkpoints_fault(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = shutil.copytree(folders[""], tmp_path / "c")
    pairs.damage(folder, lambda tensors: tensors[f"{pairs.PLACE}1.up_proj.weight"][0, :1].fill_(float("inf")))
    report = checked(folder, "--tokens", "4", code=1)
    (problem,) = report["problems"]
    assert problem.startswith("model.layers.1.mlp.experts: expert 1: its weights hold NaN or infinities")


def test_the_table_and_the_picture(tmp_path: Path, folders: dict[str, Path]) -> None:
    picture = tmp_path / "errors.png"
    found = run("check", str(folders["MXFP4"]), "--use-case", "a4w4-fp", "--plot", str(picture))
    assert found.exit_code == 0
    assert "Nothing is beyond what the formats explain" in found.output
    assert picture.read_bytes()[:4] == b"\x89PNG"
