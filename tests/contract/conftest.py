"""The contract suite runs in an environment of its own, `make contract`; elsewhere nothing of it is collected.

Its ranks are processes in which vllm-ascend's real Python meets a simulated NPU; the tests here judge what they answer.
"""

import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contract.support.checkouts import Checkout

try:
    _VERSION = importlib.metadata.version("vllm-ascend")
except importlib.metadata.PackageNotFoundError:
    _VERSION = ""

WHY_NOT = "tests/contract: not collected, vllm-ascend is not installed here; `make contract` has an environment with it"
collect_ignore_glob = [] if _VERSION else ["test_*.py"]


@pytest.fixture(scope="session")
def ascend_sources() -> Path:
    """The parts of vllm-ascend's source distribution that set-up unpacks beside the environment."""
    place = Path(sys.prefix) / "vllm-ascend" / "unpacked"
    if not (place / "tests").is_dir():
        pytest.skip(f"{place} is missing: this environment was not made by `make contract`")
    return place


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--operator", default="", help="checkouts of ops-transformer, PATH[,PATH]")


@pytest.fixture(scope="session")
def checkouts(request: pytest.FixtureRequest) -> list["Checkout"]:
    """The checkouts of the operator's repository that were given."""
    from contract.support.checkouts import read

    found = read(request.config.getoption("--operator"))
    if not found:
        pytest.skip("no checkout of ops-transformer was given: make contract OPERATOR=PATH[,PATH]")
    return found


@pytest.fixture(scope="session")
def a3_pair() -> dict[str, list[Any]]:
    """Scenes of two ranks on A3."""
    from contract.support.launch import run

    return run("a3@9.2", ["golden", "mask", "golden_pair"], ranks=2)


@pytest.fixture(scope="session")
def a950_pair() -> dict[str, list[Any]]:
    """Scenes of two ranks on 950."""
    from contract.support.launch import run

    return run("950@9.2", ["golden", "golden_pair"], ranks=2)


@pytest.fixture(scope="session")
def a3_graphs() -> dict[str, list[Any]]:
    """Graphs on A3, in processes that nothing else watches: a look at values would break a capture."""
    from contract.support.launch import run

    return run("a3@9.2", ["captured", "compiled"], ranks=2)


@pytest.fixture(scope="session")
def a950_graphs() -> dict[str, list[Any]]:
    """Graphs on 950."""
    from contract.support.launch import run

    return run("950@9.2", ["captured"], ranks=2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Versions, times, and what the stand-ins were asked for; or why nothing ran."""
    if not _VERSION:
        terminalreporter.line(WHY_NOT)
        return
    from contract.support.launch import RECORD

    terminalreporter.section("contract: versions")
    for name, version in sorted(RECORD.versions.items()):
        terminalreporter.line(f"{name} {version}")
    terminalreporter.section("contract: runs")
    for what, seconds in RECORD.seconds.items():
        terminalreporter.line(f"{seconds:6.1f} s  {what}")
    for line in RECORD.notes:
        terminalreporter.line(line)
    terminalreporter.section("contract: asked of stand-ins, and how often")
    for name, count in sorted(RECORD.asked.items()):
        terminalreporter.line(f"{count:4d}  {name}")
