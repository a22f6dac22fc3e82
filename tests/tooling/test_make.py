"""`make help` tells of every target, and of nothing that is not there; the targets run what they say."""

import os
import re
import subprocess
from pathlib import Path

import pytest

TARGETS = {"demo", "test", "test-full", "test-torch210", "contract", "lint", "docs", "site", "bench", "help"}

INHERITED = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "VENV")
"""What a make hands to the makes below it: `make test ARGS=-q` runs these tests, and its ARGS is not theirs."""


def make(repository: Path, *arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=repository, env=environment | variables, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("arguments", [[], ["help"]], ids=["default", "help"])
def test_lists_all_targets(repository: Path, arguments: list[str]) -> None:
    listed = dict(re.findall(r"^  make ([\w-]+) +(\S.*)$", make(repository, *arguments), flags=re.MULTILINE))
    assert listed.keys() >= TARGETS
    rules = set(re.findall(r"^([a-z][\w-]*):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    assert listed.keys() == rules


@pytest.mark.parametrize(("target", "marker"), [("test", "not full"), ("test-full", "full or hypothesis")])
def test_tests_are_split_by_their_marker(repository: Path, target: str, marker: str) -> None:
    (line,) = [line for line in make(repository, "--dry-run", target).splitlines() if "-m pytest" in line]
    assert f'-m "{marker}"' in line
    assert ("--hypothesis-profile new" in line) == (target == "test-full")


def test_the_callers_arguments_stay_the_callers(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test ARGS="-q"` starts these tests with its ARGS in the environment, and in MAKEFLAGS."""
    plain = make(repository, "--dry-run", "test")
    monkeypatch.setenv("ARGS", "-q")
    monkeypatch.setenv("MAKEFLAGS", "w -- ARGS=-q")
    assert make(repository, "--dry-run", "test") == plain
    assert make(repository, "--dry-run", "test", "ARGS=-k layout").rstrip() == f"{plain.rstrip()} -k layout"
