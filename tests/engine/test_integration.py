"""The third way of use: a model-integration test in pytest, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from engines import engine_environment

pytestmark = pytest.mark.engine


def test_a_model_teams_own_test_passes(checkpoint: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name("integration_case.py"))]
    env = engine_environment() | {"CHECKPOINT": checkpoint, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "2 passed" in done.stdout
