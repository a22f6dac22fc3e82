"""Runs of the demo that a test starts and nobody has to clean up after."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from demo.runs import SIGNAL_AT_START, DemoRun

from vllm_megamoe.demo.baseline import Cache


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DemoRun]]:
    """Start the demo with a fake server; `checkpoint=True` puts an empty folder where the checkpoint would be.

    `mode` and `shift` tell the fake server how to behave; `signal_at_start` is SIGNAL_AT_START.
    """
    runs: list[DemoRun] = []

    def begin(*arguments: str, checkpoint: bool = True, signal_at_start: bool = False, **behaviour: Any) -> DemoRun:
        if checkpoint:
            Cache(tmp_path / "cache").checkpoint.mkdir(parents=True, exist_ok=True)
        early = SIGNAL_AT_START if signal_at_start else ""
        runs.append(DemoRun(tmp_path, *arguments, early=early, **behaviour))
        return runs[-1]

    yield begin
    for run in runs:
        run.send(signal.SIGTERM)
        run.wait()
