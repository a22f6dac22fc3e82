"""`check` of every checkpoint that a real tool wrote, against its original; and the bounds beside what they lose.

The margins of checkpoint/explained.py rest on the figures that are measured here.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.test_check import checked
from formats.fixtures import FIXTURES, Fixture
from safetensors.torch import load_file, save_file

from vllm_megamoe.checkpoint import explained
from vllm_megamoe.checkpoint.stored.matrix import values_of
from vllm_megamoe.cli.checkpoint.opened import open_checkpoint

QUANTISED = [row for row in FIXTURES if row.kind != "bf16" and not row.refused]
OFTEN = (
    "deepseek_v3_mtp__msmodelslim__w4a8_dynamic",
    "mixtral__llmcompressor-mf__W8A8",
    "qwen3_moe__llmcompressor__NVFP4",
    "qwen3_moe__msmodelslim__w4a4_mxfp4",
    "qwen3_moe__transformers__fp8_block128",
)
"""One of each kind of codes and naming; the others are asked in the full run."""
ASKED = [pytest.param(row, marks=[pytest.mark.full] * (row.folder not in OFTEN), id=row.folder) for row in QUANTISED]


@pytest.mark.parametrize("row", ASKED)
def test_a_tools_checkpoint_passes(shared_dir: Path, row: Fixture) -> None:
    folders = shared_dir / "fixtures"
    folder, base = folders / f"{row.folder}__s0", folders / f"{row.base}__s0"
    consent = [] if row.facts.exact else ["--requant", "allow"]
    report = checked(folder, "--against", base, "--tokens", "8", *consent)
    low, high = row.frobenius
    assert any(layer["part"] == "shared" for layer in report["layers"]) is row.folder.startswith(WITH_SHARED)
    for layer in routed(report):
        assert 0.98 * low <= layer["weight_rel_err"] <= 1.05 * high
    if row.answer == "exact":
        own = checked(folder, "--tokens", "8", *consent)
        assert {layer["weight_rel_err"] for layer in routed(own)} == {0.0}


WITH_SHARED = ("deepseek_v3", "qwen2_moe")


def routed(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [layer for layer in report["layers"] if layer["part"] == "routed"]


@pytest.mark.parametrize(
    ("folder", "use_case"),
    [("deepseek_v3__msmodelslim__w8a8_dynamic", "a16w16"), ("deepseek_v3__msmodelslim__w4a8_mxfp", "a8w8-fp")],
)
def test_damage_of_shared_experts_is_theirs(shared_dir: Path, tmp_path: Path, folder: str, use_case: str) -> None:
    """On vLLM's own path, and fused in another type than the routed experts': one projection's rows moved by one."""
    fixtures = shared_dir / "fixtures"
    copy = shutil.copytree(fixtures / f"{folder}__s0", tmp_path / "damaged")
    (file,) = copy.glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("shared_experts.up_proj.weight"))
    tensors[name] = tensors[name].view(torch.uint8).roll(1, dims=0).view(tensors[name].dtype)
    save_file(tensors, file, {"format": "pt"})
    report = checked(copy, "--against", fixtures / "deepseek_v3__base__bf16__s0", "--tokens", "4", code=1)
    sound, hit = report["layers"]
    assert (sound["part"], sound["excess"]) == ("routed", [])
    assert (hit["part"], hit["use_case"], hit["name"]) == ("shared", use_case, "model.layers.1.mlp.shared_experts")
    assert "shared_experts.up_proj" in hit["excess"][0]


@pytest.mark.full
def test_losses_of_tools_over_plain_rounding(shared_dir: Path) -> None:
    matrices, rows, elements = [], [], dict.fromkeys(explained.ELEMENT, 0.0)
    for row in QUANTISED:
        opened = open_checkpoint(str(shared_dir / "fixtures" / f"{row.folder}__s0"))
        base = open_checkpoint(str(shared_dir / "fixtures" / f"{row.base}__s0"))
        for layer, other in zip(opened.layers, base.layers, strict=True):
            stored, original = opened.stored(layer), base.stored(other)
            for number in range(layer.num_experts):
                pairs = zip(stored.matrices(number).values(), original.matrices(number).values(), strict=True)
                for matrix, plain in pairs:
                    kind, w = explained.code_kind(matrix, layer.experts_format), values_of(plain)
                    off, lost = values_of(matrix) - w, explained.plain_loss(w, kind, False)
                    matrices.append(float(off.norm() / lost.norm()))
                    rows.append(float((off.norm(dim=1) / lost.norm(dim=1)).max()))
                    part = float((off.abs() / w.abs().amax(dim=1, keepdim=True)).max())
                    elements[kind] = max(elements[kind], part)
    assert len(QUANTISED) == 28
    assert torch.tensor(matrices).max() == pytest.approx(1.05, abs=0.005)
    assert torch.tensor(rows).max() == pytest.approx(1.51, abs=0.005)
    assert elements == pytest.approx(
        {"dense": 0.0, "int8": 0.006, "int4": 0.422, "e4m3": 0.122, "e5m2": 0.0, "e2m1": 0.2}, abs=0.0006
    )
