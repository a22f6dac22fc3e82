"""A malformed checkpoint is rejected in the process that the user started, together with all else that is wrong."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli import pairs

from vllm_megamoe.plan.model import DraftModel, Speculation, read_model

PLACE = "model.layers.1.mlp.experts.2.up_proj.weight"


def variant(folder: Path, **changes: Any) -> Path:
    """The BF16 checkpoint with its config changed."""
    pairs.write(folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How each checkpoint ended: one process builds all configs."""
    tmp = tmp_path_factory.mktemp("malformed")
    folders = {name: variant(tmp / name) for name in ("sound", "cut", "outside", "dtype", "shape")}
    cut = folders["cut"] / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-64])
    (folders["outside"] / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {PLACE: "../sound/model.safetensors"}})
    )
    pairs.damage(folders["dtype"], lambda tensors: tensors.update({PLACE: tensors[PLACE].int()}))
    pairs.damage(folders["shape"], lambda tensors: tensors.update({PLACE: tensors[PLACE][:-2]}))
    folders["both"] = variant(tmp / "both", num_experts=6, hidden_act="gelu")
    ours = {"quantization": "megamoe", "max_model_len": 128, "skip_tokenizer_init": True}
    cases = {name: {"model": str(folder), **ours} for name, folder in folders.items()}
    cases["dummy"] = {**cases["shape"], "load_format": "dummy"}
    cases["without the flag"] = {**cases["shape"], "quantization": None}
    file = tmp / "cases.json"
    file.write_text(json.dumps(cases))
    command = [sys.executable, str(Path(__file__).with_name("config_cases.py")), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    lines = [line.removeprefix("CASE ") for line in done.stdout.splitlines() if line.startswith("CASE ")]
    found: dict[str, Any] = {}
    for line in lines:
        found |= json.loads(line)
    assert set(found) == set(cases), done.stderr[-3000:]
    return found


@pytest.mark.parametrize("case", ["sound", "dummy", "without the flag"])
def test_accepted(case: str, ends: dict[str, Any]) -> None:
    """Weights that are not read are not looked at."""
    assert "error" not in ends[case], ends[case]


REJECTED = {
    "cut": ["model.safetensors", "cut short", "Copy the checkpoint anew"],
    "outside": ["model.safetensors.index.json", PLACE, "'../sound/model.safetensors'", "a file in this folder"],
    "dtype": ["model.safetensors", PLACE, "has dtype I32", "expected BF16"],
    "shape": ["model.safetensors", PLACE, "has shape [62, 128]", "[64, 128]"],
    "both": ["model.layers.1.mlp.experts.5.up_proj.*", "experts 0 to 5", "activation 'gelu'"],
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected_before_an_engine_starts(case: str, ends: dict[str, Any]) -> None:
    assert ends[case].get("error") == "ConfigError", ends[case]
    for part in REJECTED[case]:
        assert part in ends[case]["message"]


def test_a_draft_models_own_folder_is_looked_at_too(tmp_path: Path) -> None:
    """Where its experts are the operator's too; the target's folder is sound."""
    from vllm_megamoe.lanes.startup import read_headers_of

    target, draft = pairs.write(tmp_path / "target"), pairs.write(tmp_path / "draft")
    pairs.damage(draft, lambda tensors: tensors.pop(PLACE))
    config = json.loads((target / "config.json").read_text())
    facts = read_model(config, {})
    with_draft = replace(facts, layers=(*facts.layers, replace(facts.layers[1], draft=True)))
    engine = SimpleNamespace(
        model_config=SimpleNamespace(model=str(target), hf_config=SimpleNamespace(to_dict=lambda: config)),
        load_config=SimpleNamespace(load_format="auto"),
        quant_config=SimpleNamespace(side_files={}),
    )
    speculation = Speculation("eagle", DraftModel(str(draft), config, {}))
    targets, drafts = read_headers_of(engine, with_draft, speculation)
    assert targets.problems == []
    assert [problem.tensor for problem in drafts.problems] == [PLACE]
    for given in (speculation, None):
        (alone,) = read_headers_of(engine, facts, given)
        assert alone.problems == []
        parts = {layer: set(found.parts.items()) for layer, found in alone.layers.items()}
        weight = frozenset({"weight"})
        assert parts["model.layers.1.mlp.experts"] == {(f"{name}_proj", weight) for name in ("gate", "up", "down")}
