"""Skips: told at the end of every run, and in `.ci/run` a failure unless tests/allowed_skips.txt has their reason."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

OPTION = "--skips-need-a-reason"
ALLOWED = "no C++ compiler on PATH"


def run(repository: Path, folder: Path, reasons: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """pytest with the repository's conftest over tests that are skipped for these reasons, and one that passes."""
    lines = ["import pytest", "def test_fine(): pass"]
    lines += [f"def test_{n}(): pytest.skip({reason!r})" for n, reason in enumerate(reasons)]
    (folder / "test_planted.py").write_text("\n".join(lines))
    (folder / "pytest.ini").write_text("[pytest]\n")
    path = os.pathsep.join([str(repository / "tests"), str(repository), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *options, str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command, cwd=folder, env=environment | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "workers", [pytest.param([], id="alone"), pytest.param(["-n", "2"], id="two workers", marks=pytest.mark.full)]
)
def test_a_skip_without_leave_fails_only_where_it_is_asked_for(
    repository: Path, tmp_path: Path, workers: list[str]
) -> None:
    for option, code in (([], 0), ([OPTION], 1)):
        done = run(repository, tmp_path, ["planted", "planted", ALLOWED], *workers, *option)
        assert done.returncode == code, done.stdout + done.stderr
        assert re.search(r"^ +2  planted\n +1  no C\+\+ compiler on PATH\n +3  in all$", done.stdout, re.MULTILINE)
        assert ("FAILED: skipped without leave: planted" in done.stdout) == bool(option)


def test_an_allowed_skip_passes(repository: Path, tmp_path: Path) -> None:
    assert run(repository, tmp_path, [ALLOWED], OPTION).returncode == 0


def test_every_allowed_skip_says_why_and_is_one_of_ours(repository: Path) -> None:
    text = "".join(path.read_text() for path in (repository / "tests").rglob("*.py") if path != Path(__file__))
    lines = (repository / "tests" / "allowed_skips.txt").read_text().splitlines()
    entries = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    assert entries
    for reason, why in entries:
        assert why
        assert f'"{reason}"' in text


def test_ci_runs_all_and_forbids_skips(repository: Path) -> None:
    text = (repository / ".ci" / "run").read_text()
    steps = re.findall(r"^run [\w-]+ make ([\w.-]+)(.*)$", text, re.MULTILINE)
    tests = ["test-full", "test-torch210", "contract"]
    assert [target for target, _ in steps] == [".venv", "lint", "test", "demo", *tests]
    assert all((OPTION in rest) == (target.startswith("test") or target == "contract") for target, rest in steps)
