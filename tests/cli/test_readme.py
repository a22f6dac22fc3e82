"""The README shows what the command really prints."""

import re
from pathlib import Path

import pytest
from cli.command import QWEN3_30B_A3B, run, write_model


def test_readme_shows_the_commands_real_output(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (repository / "README.md").read_text()
    block = re.search(r"^    \$ vllm-megamoe (?P<line>plan .*)\n(?P<output>(?:    .*\n|\n)+)", text, re.MULTILINE)
    assert block is not None
    write_model(tmp_path / "Qwen3-30B-A3B", QWEN3_30B_A3B)
    monkeypatch.chdir(tmp_path)
    printed = run(*block["line"].split()).stdout
    # Only line breaks and indents differ: the line to copy is broken with backslashes.
    assert block["output"].replace("\\\n", " ").split() == printed.split()
