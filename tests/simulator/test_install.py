"""The whole torch_npu, installed into processes of its own by a folder on PYTHONPATH."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.simulator.install import install, path_entry

SCRIPT = Path(__file__).with_name("installed.py")


def start(name: str, *arguments: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join(filter(None, [path_entry(), os.environ.get("PYTHONPATH", "")]))
    here = {"PYTHONPATH": path, "VLLM_MEGAMOE_SIMULATED_NPU": name, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **here}, stdout=pipe, stderr=pipe, text=True)


def seen(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    return dict(json.loads(output.splitlines()[-1]))


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return seen(start("a3@9.1", "one"))


def test_formats_go_with_tensors(alone: dict[str, Any]) -> None:
    assert alone["formats"] == {
        "on": True,
        "off": 2,  # without allow_internal_format a cast does nothing
        "parameter": 29,
        "same object": True,
        "attribute": "ours",
        "is parameter": True,
        "parts": [29] * 3,
        "shapes": [[64, 24]] * 3,
        "back": True,
        "plain again": True,
        "four dimensions": 0,
    }


def test_every_spelling_of_the_device_is_the_cpu(alone: dict[str, Any]) -> None:
    assert alone["devices"] == ["cpu"] * 5


def test_the_operators_of_one_layer(alone: dict[str, Any]) -> None:
    assert alone["kernels"] == [[[0, 1]], True, True, [[2, 3]], True, True]


def test_an_operator_of_the_package_sees_formats(alone: dict[str, Any]) -> None:
    assert alone["libraries"] == [29, 2, 2]


def test_what_is_not_simulated_says_so(alone: dict[str, Any]) -> None:
    assert alone["unknown operator"] == "NotImplementedError: torch_npu.npu_fusion_attention is not simulated"
    assert alone["unknown name"].startswith("AttributeError: torch_npu has no 'something'")
    assert alone["unknown class"] == [True, True]
    assert alone["another extension"] == "NotImplementedError: extension npu_other: npu_other is not simulated"
    assert alone["again"].startswith("ConfigError: 'a2@9.1' cannot be installed")


def test_the_product_is_the_one_that_was_named(alone: dict[str, Any]) -> None:
    assert (alone["build"], alone["soc"], alone["file"]) == ("A3", 253, True)


def test_the_extensions_are_the_simulated_device(tmp_path: Path) -> None:
    ranks = [start("a3@9.1", str(rank), str(tmp_path / "store")) for rank in range(2)]
    answers = [seen(process) for process in ranks]
    for found in answers:
        assert "does not exist" in found["early"]
        assert found["names"] == [True, True]
        # MB of one half: tables of 3072 B, 12 records and 12 rows of 2 KiB, 512 B of flags a rank, 10 MiB, then 1 more
        assert (found["size"], found["window"]) == (11, 400 * 2**20)
    # expert 0 of rank 0 with weight 0.5, expert 3 of rank 1 with weight 0.25
    assert [found["y"] for found in answers] == [[0.5 * 512**2 + 0.25 * 256**2], [0.5 * 1024**2 + 0.25 * 512**2]]
    assert [found["counts"] for found in answers] == [[12, 0], [0, 12]]


def test_nothing_is_installed_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_MEGAMOE_SIMULATED_NPU", raising=False)
    with pytest.raises(ConfigError, match="VLLM_MEGAMOE_SIMULATED_NPU is unset"):
        install()
