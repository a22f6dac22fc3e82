"""The linters and the type checker pass over the repository as it is."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=lambda command: "-".join(command).rstrip("-."),
)
def test_is_clean(repository: Path, command: tuple[str, ...]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", *command], cwd=repository, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
