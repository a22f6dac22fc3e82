"""The third way of use: a model-integration test in pytest, in a process of its own."""

import sys
from pathlib import Path

import pytest

from vllm_megamoe.testing.engines import engine_environment
from vllm_megamoe.testing.process import OwnProcess

pytestmark = [pytest.mark.engine, pytest.mark.full]

CASE = Path(__file__).with_name("integration_case.py")


def test_a_model_teams_own_test_passes(checkpoint: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASE)]
    variables = engine_environment() | {"CHECKPOINT": checkpoint, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with OwnProcess(command, tmp_path / "log.txt", variables) as process:
        code = process.wait(600)
        text = process.log.read_text()
    assert code == 0, text[-6000:]
    assert "2 passed" in text
