"""Conversions that tests ask for, and what lies in a folder afterwards."""

import json
from pathlib import Path
from typing import Any

from cli.command import run

from vllm_megamoe.cli.checkpoint.schema import ConvertReport


def converted(source: Path, target: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """`convert ... --json`, parsed and held against the schema."""
    found = run("convert", str(source), str(target), *arguments, "--json")
    assert found.exit_code == code, found.output
    ConvertReport.model_validate_json(found.stdout)
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
