"""`convert` of shared experts, for the ranks of a group, and of a checkpoint that was converted in part."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cli import pairs
from cli.command import run
from cli.test_check import checked
from cli.test_convert import converted
from formats.readings.store import Raw, Store

FIXTURE = "deepseek_v3__base__bf16__s0"
MODULE = "model.layers.1.mlp.shared_experts"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs.write(tmp_path_factory.mktemp("source") / "bf16")


def mxfp8(codes: Raw, scale: Raw) -> Any:
    """float64 [N, K] of E4M3 codes and E8M0 bytes."""
    assert (codes.dtype, scale.dtype) == ("F8_E4M3", "U8")
    return codes.numbers() * np.repeat(2.0 ** (scale.bits.astype(np.float64) - 127), 32, axis=1)


@pytest.mark.full
def test_shared_experts_in_another_type(tmp_path: Path, shared_dir: Path) -> None:
    """Codes by the floor rule from the BF16 weights, `show` and `check` know them, all else is kept."""
    base, own = shared_dir / "fixtures" / FIXTURE, tmp_path / "own"
    arguments = ("--use-case", "a8w4-fp", "--shared-use-case", "a8w8-fp")
    routed, shared = converted(base, own, *arguments)["layers"]
    assert (shared["part"], shared["name"], shared["use_case"]) == ("shared", MODULE, "a8w8-fp")
    assert 0.02 < shared["weight_rel_err"] < 0.04 < routed["weight_rel_err"]
    before, after = Store.open(base), Store.open(own)
    for name in pairs.NAMES:
        w = before.tensors[f"{MODULE}.{name}.weight"].numbers().astype(np.float32)
        scaled, scales = pairs._groups(w, 8)
        codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        expected = codes * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)
        got = mxfp8(*(after.tensors[f"{MODULE}.{name}.{part}"] for part in ("codes", "codes_sf")))
        np.testing.assert_array_equal(got, expected)
    assert not any(name.startswith(MODULE) and name.endswith("weight") for name in after.tensors)
    shown = json.loads(run("show", str(own), "--json").stdout)
    assert (shown["layers"][0]["shared"]["format"], shown["problems"]) == ("megamoe-a8w8-fp", [])
    first, second = checked(own, "--against", base, "--tokens", "4")["layers"]
    assert (first["use_case"], second["use_case"]) == ("a8w4-fp", "a8w8-fp")
    assert second["weight_rel_err"] == pytest.approx(shared["weight_rel_err"], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--use-case", "a8w8-int", "--shared"), "the operator takes FP8 and FP4 only"),
        (("--use-case", "a8w8-fp", "--shared-use-case", "a16w16"), "which the operator does not hold exactly beside"),
        (("--use-case", "a8w8-int", "--shared", "--profile", "a3@9.2"), "takes none on A2 and A3"),
        (("--use-case", "a8w8-fp", "--shared-use-case", "auto"), "expected the use case by name"),
        (("--use-case", "a8w8-fp", "--shared-use-case", "a8w9"), "a8w9"),
    ],
)
def test_shared_experts_that_nothing_would_fuse(
    tmp_path: Path, shared_dir: Path, arguments: tuple[str, ...], said: str
) -> None:
    found = run("convert", str(shared_dir / "fixtures" / FIXTURE), str(tmp_path / "own"), *arguments)
    assert found.exit_code == 2
    assert said in " ".join(found.output.replace("│", "").split()), found.output
    assert not (tmp_path / "own").exists()


def test_a_model_without_shared_experts(tmp_path: Path, source: Path) -> None:
    found = run("convert", str(source), str(tmp_path / "own"), "--use-case", "a8w8-fp", "--shared")
    assert found.exit_code == 2
    assert "no layer has shared experts" in found.output


def test_a_file_for_each_rank(tmp_path: Path, source: Path) -> None:
    """Rank r of two has experts 2r and 2r + 1, and the tensors are those of one file for all."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    first = converted(source, whole, "--use-case", "a8w8-int")["layers"]
    layers = converted(source, cut, "--use-case", "a8w8-int", "--ep", "2")["layers"]
    assert [len(layer["files"]) for layer in layers] == [2, 2]
    assert [a["weight_rel_err"] for a in layers] == [pytest.approx(b["weight_rel_err"], rel=1e-12) for b in first]
    index = json.loads((cut / "model.safetensors.index.json").read_text())["weight_map"]
    for rank in range(2):
        name = f"megamoe-experts-00001-rank-00{rank}-of-002.safetensors"
        held = {tensor.split(".experts.")[1].split(".")[0] for tensor, file in index.items() if file == name}
        assert held == {str(2 * rank), str(2 * rank + 1)}
    before, after = Store.open(whole), Store.open(cut)
    assert before.tensors.keys() == after.tensors.keys()
    for name, raw in before.tensors.items():
        np.testing.assert_array_equal(after.tensors[name].bits, raw.bits)
    assert json.loads((whole / "config.json").read_text()) == json.loads((cut / "config.json").read_text())


def test_ranks_that_experts_cannot_be_dealt_to(tmp_path: Path, source: Path) -> None:
    for arguments in (["--ep", "3"], ["--ep", "0"], ["--ep", "4", "--tp", "3"], ["--tp", "8"]):
        found = run("convert", str(source), str(tmp_path / "own"), "--use-case", "a8w8-int", *arguments)
        assert found.exit_code == 2, found.output
        assert not (tmp_path / "own").exists()


def test_what_was_converted_in_part_goes_on_as_a_source(tmp_path: Path, source: Path) -> None:
    """The first layer, then the second one: nothing of the first is lost; then for two ranks, byte for byte."""
    half, whole, cut = tmp_path / "half", tmp_path / "whole", tmp_path / "cut"
    converted(source, half, "--use-case", "a8w8-int", "--layers", "0")
    converted(half, whole, "--use-case", "a8w8-int", "--layers", "1")
    shown = json.loads(run("show", str(whole), "--json").stdout)
    assert [layer["format"] for layer in shown["layers"]] == ["megamoe-a8w8-int"] * 2
    assert shown["problems"] == []
    checked(whole, "--against", source, "--tokens", "4")
    layers = converted(whole, cut, "--use-case", "a8w8-int", "--tp", "2")["layers"]
    assert [layer["weight_rel_err"] for layer in layers] == [0, 0]
    before, after = Store.open(whole), Store.open(cut)
    for name, raw in before.tensors.items():
        np.testing.assert_array_equal(after.tensors[name].bits, raw.bits)
