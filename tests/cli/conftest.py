"""A checkpoint for all commands that read one."""

from pathlib import Path

import pytest
from cli import pairs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The BF16 checkpoint, with files beside it."""
    folder = pairs.write(tmp_path_factory.mktemp("source") / "bf16")
    (folder / "tokenizer.json").write_bytes(b'{"a": "\xc3\xa9"}\r\n')
    (folder / "LICENSE").write_bytes(bytes(range(256)))
    return folder
