"""`convert`: what is written means the source's numbers, all else is kept, and an ended run leaves no checkpoint."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cli import pairs
from cli.command import run
from cli.conversions import converted, files_of
from cli.test_check import checked
from formats.readings.store import Raw, Store
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]


def experts_of(folder: Path) -> Iterator[tuple[str, str, dict[str, Raw]]]:
    """Expert's name, `gate_proj` or `down_proj`, its operands."""
    store, found = Store.open(folder), {}
    for name, raw in store.tensors.items():
        expert, _, rest = name.rpartition(".experts.")
        if expert and ".operand" in name:
            number, projection, part = rest.split(".")
            found.setdefault((f"{expert}.experts.{number}", projection), {})[part] = raw
    yield from ((expert, projection, parts) for (expert, projection), parts in found.items())


def plain_int8(parts: dict[str, Raw]) -> NDArray[np.float64]:
    """A8W8-INT: FRACTAL_NZ of [K, N] is [N/32, K/16, 16, 32]; scales are float32 bits in int64."""
    blocks = parts["operand"].bits
    columns, rows = blocks.shape[0] * 32, blocks.shape[1] * 16
    matrix = np.empty((rows, columns))
    for (c, r, i, j), value in np.ndenumerate(blocks):
        matrix[r * 16 + i, c * 32 + j] = value
    scale = parts["operand_sf"].bits.astype(np.int64).astype(np.uint32).view(np.float32)
    return matrix.T * scale[:, None]


def plain_bf16(parts: dict[str, Raw]) -> NDArray[np.float64]:
    """A16W16: plain [K, N]."""
    return parts["operand"].numbers().T


def plain_fp8(parts: dict[str, Raw]) -> NDArray[np.float64]:
    """A8W8-FP: plain [N, K], scales [N, K/64, 2]."""
    scale = 2.0 ** (parts["operand_sf"].bits.astype(np.float64) - 127)
    return parts["operand"].numbers() * np.repeat(scale.reshape(len(scale), -1), 32, axis=1)


PLAIN = {"a8w8-int": (plain_int8, "W8A8_DYNAMIC"), "a16w16": (plain_bf16, ""), "a8w8-fp": (plain_fp8, "MXFP8")}


@pytest.mark.parametrize("use_case", PLAIN)
def test_operands_mean_the_sources_numbers(tmp_path: Path, source: Path, use_case: str) -> None:
    """Read from their bytes by the layouts' rules alone, exactly what a plain quantiser makes of the original."""
    converted(source, tmp_path / "own", "--use-case", use_case)
    read, kind = PLAIN[use_case]
    originals, seen = pairs.originals(), 0
    for expert, projection, parts in experts_of(tmp_path / "own"):
        names = ("gate_proj", "up_proj") if projection == "gate_proj" else ("down_proj",)
        expected = [_quantised(kind, originals[f"{expert}.{name}"].float().numpy()) for name in names]
        np.testing.assert_array_equal(read(parts), np.concatenate(expected))
        seen += 1
    assert seen == 2 * pairs.LAYERS * pairs.SHAPE.experts


@pytest.mark.parametrize(("use_case", "said"), [("a8w8-int", 1), ("a16w16", 0)])
def test_a_loss_is_of_weights_and_of_outputs(tmp_path: Path, source: Path, use_case: str, said: int) -> None:
    """docs/checkpoints.md has the figure of a layer's output; an exact conversion is told of none."""
    text = " ".join(run("convert", str(source), str(tmp_path / "own"), "--use-case", use_case).output.split())
    assert text.count("A layer's output as a8w8-int: off by 1.9 to 3.1 % of its rms with Gaussian weights.") == said
    assert text.count("check TARGET --against SOURCE") == said


def _quantised(kind: str, w: NDArray[np.float32]) -> NDArray[np.float64]:
    if kind == "W8A8_DYNAMIC":
        scale = np.abs(w).max(axis=1, keepdims=True) / np.float32(127)
        return np.rint(w / scale).astype(np.float64) * scale.astype(np.float64)
    if kind == "MXFP8":
        scaled, scales = pairs._groups(w, 8)
        codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        return codes * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)
    return w.astype(np.float64)


@pytest.mark.parametrize("use_case", ["a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
def test_the_loss_is_what_check_measures_of_the_result(tmp_path: Path, source: Path, use_case: str) -> None:
    own = tmp_path / "own"
    layers = converted(source, own, "--use-case", use_case)["layers"]
    measured = checked(own, "--against", source, "--tokens", "4")["layers"]
    assert [layer["use_case"] for layer in measured] == [use_case] * 2
    assert [a["weight_rel_err"] for a in layers] == pytest.approx([b["weight_rel_err"] for b in measured], rel=1e-5)
    assert [layer["weight_rel_err"] for layer in checked(own, "--tokens", "4")["layers"]] == [0, 0]


def test_scales_that_never_saturate(tmp_path: Path, source: Path) -> None:
    """No weight of the original is cut: none is off by more than half a step (2^-4 of itself in E4M3)."""
    for rule, cut in (("floor", True), ("ceil", False)):
        converted(source, tmp_path / rule, "--use-case", "a8w8-fp", "--mx-scale", rule)
        off = []
        for expert, projection, parts in experts_of(tmp_path / rule):
            names = ("gate_proj", "up_proj") if projection == "gate_proj" else ("down_proj",)
            w = np.concatenate([pairs.originals()[f"{expert}.{name}"].double().numpy() for name in names])
            largest = np.abs(w) > 0.9 * np.abs(w).max()
            off.append(float((np.abs(plain_fp8(parts) - w) / np.abs(w))[largest].max()))
        assert (max(off) > 2.0**-4) is cut
    assert run("convert", str(source), str(tmp_path / "x"), "--use-case", "a8w8-fp", "--mx-scale", "up").exit_code == 2


@pytest.mark.parametrize("kind", pairs.QUANTISERS)
def test_a_quantised_source_loses_nothing(tmp_path: Path, kind: str) -> None:
    folder = pairs.write(tmp_path / "source", kind)
    layers = converted(folder, tmp_path / "own", "--use-case", pairs.USE_CASES[kind])["layers"]
    assert [layer["weight_rel_err"] for layer in layers] == [0, 0]


def test_padding_for_a_product_changes_no_number(tmp_path: Path, source: Path) -> None:
    own = tmp_path / "own"
    arguments = ("--use-case", "a8w8-int", "--profile", "a3@9.2")
    layers = converted(source, own, *arguments)["layers"]
    assert {(layer["hidden"], layer["intermediate_hidden"]) for layer in layers} == {(1024, 512)}
    plain = converted(source, tmp_path / "plain", "--use-case", "a8w8-int")["layers"]
    assert [a["weight_rel_err"] for a in layers] == [b["weight_rel_err"] for b in plain]
    checked(own, "--against", source, "--tokens", "4")


def test_all_else_is_kept_byte_for_byte(tmp_path: Path, source: Path) -> None:
    own = tmp_path / "own"
    converted(source, own, "--use-case", "a8w8-fp")
    before, after = Store.open(source), Store.open(own)
    kept = {name for name in before.tensors if ".experts." not in name}
    assert kept == {name for name in after.tensors if ".experts." not in name}
    for name in kept:
        assert before.tensors[name].dtype == after.tensors[name].dtype
        np.testing.assert_array_equal(before.tensors[name].bits, after.tensors[name].bits)
    for file in ("tokenizer.json", "LICENSE"):
        assert (own / file).read_bytes() == (source / file).read_bytes()
    section = after.config["quantization_config"]
    assert {**before.config, "quantization_config": section} == after.config
    index = json.loads((own / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(after.tensors)
    assert index["metadata"]["total_size"] == sum(raw.bits.nbytes for raw in after.tensors.values())


def test_some_layers(tmp_path: Path, source: Path) -> None:
    own = tmp_path / "own"
    converted(source, own, "--use-case", "a8w8-int", "--layers", "1")
    shown = json.loads(run("show", str(own), "--json").stdout)
    assert [layer["format"] for layer in shown["layers"]] == ["bf16", "megamoe-a8w8-int"]
    assert shown["problems"] == []
    checked(own, "--against", source, "--tokens", "4")


def test_folders_that_are_not_touched(tmp_path: Path, source: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    before = files_of(source)
    for target, said in ((full, "not empty"), (source, "the source itself")):
        found = run("convert", str(source), str(target), "--use-case", "a8w8-int")
        assert (found.exit_code, said in found.output) == (2, True), found.output
    assert (files_of(full), files_of(source)) == ({"mine.txt": b"mine"}, before)
    own = tmp_path / "own"
    converted(source, own, "--use-case", "a8w8-int")
    assert run("convert", str(source), str(own), "--use-case", "a8w8-int").exit_code == 2


def test_refusals(tmp_path: Path, source: Path) -> None:
    for arguments in (["--use-case", "auto"], ["--use-case", "a8w9"], []):
        assert run("convert", str(source), str(tmp_path / "own"), *arguments).exit_code == 2
    int8 = pairs.write(tmp_path / "int8", "W8A8_DYNAMIC")
    found = run("convert", str(int8), str(tmp_path / "own"), "--use-case", "a8w4-int")
    assert found.exit_code == 2
    assert "a8w4-int from msmodelslim-w8a8-dynamic experts" in found.output
    broken = shutil.copytree(source, tmp_path / "broken")
    pairs.damage(broken, lambda tensors: tensors.pop(f"{pairs.PLACE}1.up_proj.weight"))
    assert run("convert", str(broken), str(tmp_path / "own"), "--use-case", "a8w8-int").exit_code == 1
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-fp"])
def test_weights_that_are_no_numbers(tmp_path: Path, source: Path, use_case: str) -> None:
    broken = shutil.copytree(source, tmp_path / "broken")
    pairs.damage(broken, lambda tensors: tensors[f"{pairs.PLACE}2.up_proj.weight"][3, 4:5].fill_(float("nan")))
    found = run("convert", str(broken), str(tmp_path / "own"), "--use-case", use_case)
    assert found.exit_code == 2
    assert "model.layers.1.mlp.experts.2: its weights hold NaN" in found.output
    assert not (tmp_path / "own" / "config.json").exists()


@pytest.mark.parametrize("sizes", [{"hidden": 10**9}, {"intermediate_hidden": 32}])
def test_listed_sizes_that_cannot_be(tmp_path: Path, source: Path, sizes: dict[str, int]) -> None:
    """No memory is taken for what config.json claims; 128 and 64 are the model's."""
    own = tmp_path / "own"
    converted(source, own, "--use-case", "a8w8-int")
    config = json.loads((own / "config.json").read_text())
    config["quantization_config"]["layers"]["model.layers.1.mlp.experts"] |= sizes
    (own / "config.json").write_text(json.dumps(config))
    found = run("show", str(own))
    assert found.exit_code == 1
    assert "expected 128 and 64, or what they are padded to" in " ".join(found.output.split())


@pytest.mark.parametrize("damage", ["dtype", "shape", "missing", "version"])
def test_a_malformed_result_is_named(tmp_path: Path, source: Path, damage: str) -> None:
    own = tmp_path / "own"
    converted(source, own, "--use-case", "a8w8-int")
    name = "model.layers.1.mlp.experts.2.down_proj.operand_sf"
    file = own / "megamoe-experts-00001.safetensors"
    if damage == "version":
        config = json.loads((own / "config.json").read_text())
        config["quantization_config"]["version"] = 2
        (own / "config.json").write_text(json.dumps(config))
        assert "version = 2; expected 1" in run("show", str(own)).output
        return
    changes = {"dtype": lambda t: t.float(), "shape": lambda t: t[:-1]}
    tensors = pairs.load_file(file)
    old = tensors.pop(name)
    if damage in changes:
        tensors[name] = changes[damage](old).contiguous()
    pairs.save_file(tensors, file, {"format": "pt"})
    found = run("show", str(own))
    assert found.exit_code == 1
    assert name in found.output


@pytest.mark.full
def test_fixtures_of_every_naming(tmp_path: Path, shared_dir: Path) -> None:
    """Draft layers, shared experts, a description, w1 to w3: what the source had beside the experts stays readable."""
    for folder, use_case in (
        ("deepseek_v3_mtp__msmodelslim__w4a8_dynamic", "a8w4-int"),
        ("mixtral__llmcompressor-mf__W8A8", "a8w8-int"),
        ("minimax_m2__llmcompressor-mf__MXFP8", "a8w8-fp"),
        ("qwen3_moe__msmodelslim__w4a4_mxfp4", "a4w4-fp"),
    ):
        source, own = shared_dir / "fixtures" / f"{folder}__s0", tmp_path / folder
        layers = converted(source, own, "--use-case", use_case)["layers"]
        assert all(layer["weight_rel_err"] == 0 for layer in layers)
        base = shared_dir / "fixtures" / f"{folder.split('__')[0]}__base__bf16__s0"
        was, now = checked(source, "--against", base, "--tokens", "4"), checked(own, "--against", base, "--tokens", "4")
        for before, after in zip(was["layers"], now["layers"], strict=True):
            assert before["weight_rel_err"] == after["weight_rel_err"]
            assert before["output_rel_err"] == after["output_rel_err"]
