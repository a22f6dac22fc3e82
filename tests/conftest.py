"""Fixtures that several folders of tests use, and the list of skips at the end of a run."""

import os
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED_VARIABLE = "VLLM_MEGAMOE_SHARED"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The clone's folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared fixtures: beside the clone, or where VLLM_MEGAMOE_SHARED says; a skip when it is missing."""
    place = Path(os.environ.get(SHARED_VARIABLE) or ROOT.parent / "shared")
    if not (place / "fixtures").is_dir():
        pytest.skip(f"../shared is absent: no folder {place}/fixtures; put it there or set {SHARED_VARIABLE}")
    return place


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List how many tests were skipped for which reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(_reason(report) for report in skipped)
    terminalreporter.section("skips by reason")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:4d}  {reason}")
    terminalreporter.line(f"{len(skipped):4d}  in all")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
