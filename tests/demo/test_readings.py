"""What the demo reads of the experts' load."""

import json
from pathlib import Path

import pytest

from vllm_megamoe.demo.report import read_load, settled_load
from vllm_megamoe.testing.process import HarnessError


def write(file: Path, rows: dict[str, list[int]]) -> None:
    layers = {name: {"rows": counts, "dropped": 0} for name, counts in rows.items()}
    file.write_text(json.dumps({"format": "megamoe expert load 1", "steps": 3, "layers": layers}))


def test_the_counts_of_every_layer(tmp_path: Path) -> None:
    write(tmp_path / "load.json", {"a.1": [3, 4, 50, 60], "a.0": [7, 0]})
    assert read_load(tmp_path / "load.json") == {"a.1": [3, 4, 50, 60], "a.0": [7, 0]}
    assert settled_load(tmp_path / "load.json", 0.01) == {"a.1": [3, 4, 50, 60], "a.0": [7, 0]}


def test_a_server_that_has_served_nothing_has_no_load_but_must_have_one_in_the_end(tmp_path: Path) -> None:
    assert read_load(tmp_path / "load.json") == {}
    write(tmp_path / "load.json", {"a.0": [0, 0]})
    assert read_load(tmp_path / "load.json") == {}
    with pytest.raises(HarnessError, match="no expert load"):
        settled_load(tmp_path / "load.json", 0.01)
