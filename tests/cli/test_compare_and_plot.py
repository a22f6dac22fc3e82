"""Profiles side by side, and the figure over EP sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli.command import QWEN3_30B_A3B, report, run, write_model

PROFILES = ["none", "a2@9.1", "a3@9.1", "950@9.1", "a2@9.2", "a3@9.2", "950@9.2"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model", QWEN3_30B_A3B)


def test_profiles_are_compared_in_one_table(model: str) -> None:
    found = run("plan", model, "--compare", "a3@9.1,950@9.2", "--json")
    compared = json.loads(found.stdout)
    assert [plan["profile"] for plan in compared["profiles"]] == ["a3@9.1", "950@9.2"]
    a3, ascend950 = compared["profiles"]
    assert a3 == report(model, "--profile", "a3@9.1")
    assert a3["holds"]
    # 950 has no use case for BF16 weights: a conversion needs consent.
    assert not ascend950["holds"]
    assert ascend950["groups"][0]["padding"] is None
    # One profile under which it holds is enough.
    assert found.exit_code == 0
    text = run("plan", model, "--compare", "a3@9.1,950@9.2").stdout
    row = next(line for line in text.splitlines() if "padding" in line)
    assert "+33%" in row
    assert "none" in row
    assert '"requant": "allow"' in text


def test_all_profiles_and_none_that_holds(model: str, tmp_path: Path) -> None:
    compared = json.loads(run("plan", model, "--compare", "all", "--json").stdout)
    assert [plan["profile"] for plan in compared["profiles"]] == PROFILES
    wide = write_model(tmp_path / "wide", QWEN3_30B_A3B | {"moe_intermediate_size": 14336})
    assert run("plan", wide, "--compare", "a2@9.1,a3@9.1").exit_code == 1
    dense = write_model(tmp_path / "dense", {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 8})
    assert run("plan", dense, "--compare", "all").exit_code == 0


def test_topology_is_950s_alone(model: str) -> None:
    found = run("plan", model, "--compare", "a3@9.2,950@9.2", "--topology", "urma", "--json")
    assert [plan["topology"] for plan in json.loads(found.stdout)["profiles"]] == ["mte", "urma"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_and_its_points(model: str, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plan.{suffix}"
    found = report(model, "--profile", "a3@9.1", "--plot", str(file))
    assert [point["ep_size"] for point in found["curve"]] == [2, 4, 8, 16, 32]
    # Weights are shared out: 128 experts of 48 layers, 3 x 2048 x 1024 x 2 bytes each.
    for point in found["curve"]:
        assert point["memory"]["weights"] * point["ep_size"] == 48 * 128 * 3 * 2048 * 1024 * 2
    beginning = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert file.read_bytes().startswith(beginning)


def test_what_cannot_be_drawn(model: str, tmp_path: Path) -> None:
    def rejected(*arguments: str) -> str:
        found = run("plan", model, *arguments)
        assert found.exit_code == 2
        return found.stderr

    assert ".png, .svg, .pdf" in rejected("--plot", str(tmp_path / "plan.txt"))
    assert "no folder" in rejected("--plot", str(tmp_path / "absent" / "plan.png"))
    assert "drop --compare" in rejected("--plot", str(tmp_path / "plan.png"), "--compare", "all")


def test_a_missing_matplotlib_is_told_by_its_install_command(model: str, tmp_path: Path) -> None:
    # A module that cannot be imported stands for one that is not installed.
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('absent')\n")
    found = subprocess.run(
        [sys.executable, "-m", "vllm_megamoe.cli", "plan", model, "--plot", str(tmp_path / "plan.png")],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "PATH": "/usr/bin:/bin"},
    )
    assert found.returncode == 2
    assert "pip install 'vllm-megamoe[plot]'" in found.stderr
    assert "Traceback" not in found.stderr
