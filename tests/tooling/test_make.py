"""`make help` tells of every target, and of nothing that is not there."""

import re
import subprocess
from pathlib import Path

import pytest

TARGETS = {"demo", "test", "test-full", "contract", "lint", "docs", "bench", "help"}


@pytest.mark.parametrize("arguments", [[], ["help"]], ids=["default", "help"])
def test_lists_all_targets(repository: Path, arguments: list[str]) -> None:
    command = ["make", "--no-print-directory", *arguments]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
    listed = dict(re.findall(r"^  make ([\w-]+) +(\S.*)$", found, flags=re.MULTILINE))
    assert listed.keys() >= TARGETS
    rules = set(re.findall(r"^([a-z][\w-]*):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    assert listed.keys() == rules


@pytest.mark.parametrize(("target", "marker"), [("test", "not full"), ("test-full", "full")])
def test_tests_are_split_by_their_marker(repository: Path, target: str, marker: str) -> None:
    command = ["make", "--no-print-directory", "--dry-run", target]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"-m pytest -m \"?{marker}\"? *$", found, flags=re.MULTILINE), found
