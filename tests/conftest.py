"""What all tests share: folders, ranks with engines, how work is divided, and skips told at the end.

Drawn examples: see drawn.py.

Division (`pytest -n`): all tests that share engines stay with one worker, which begins with them because they take
longest; of the others each file stays whole.

Skips: `--skips-need-a-reason`, which `.ci/run` gives, fails a run with a skip that allowed_skips.txt does not have.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import drawn  # noqa: F401
import pytest

from vllm_megamoe.testing.engines import EngineRanks
from vllm_megamoe.testing.server import has_compiler

ROOT = Path(__file__).resolve().parents[1]
SHARED_VARIABLE = "VLLM_MEGAMOE_SHARED"
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
SKIPS_OPTION = "--skips-need-a-reason"
ENGINE_FILES = ("tests/engine/", "tests/families/test_served.py")


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


@pytest.fixture(scope="session")
def engine_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], EngineRanks]]:
    """Rank processes with vLLM in them, by their number; started at the first engine, ended with the session."""
    made: dict[int, EngineRanks] = {}

    def ranks(size: int) -> EngineRanks:
        if size not in made:
            made[size] = EngineRanks(size, tmp_path_factory.mktemp("engines"))
        return made[size]

    yield ranks
    for some in made.values():
        some.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        SKIPS_OPTION, action="store_true", help="fail when a test is skipped for a reason outside allowed_skips.txt"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the engines first, and skip what vLLM compiles where there is no compiler."""
    items.sort(key=lambda item: not _with_engines(item.nodeid))
    if not has_compiler():
        for item in items:
            if item.get_closest_marker("compiled"):
                item.add_marker(pytest.mark.skip(reason="no C++ compiler on PATH"))


def _with_engines(nodeid: str) -> bool:
    return nodeid.startswith(ENGINE_FILES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: one worker for the engines, the rest for all else; more than six would wait for the engines."""
    return min(max(len(os.sched_getaffinity(0)), 2), 6)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Divide work over xdist's workers as the module's docstring says."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "engines" if _with_engines(nodeid) else nodeid.split("::", 1)[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List how many tests were skipped for which reason, and which of them have to be explained."""
    reasons = _skips(terminalreporter)
    terminalreporter.section("skips by reason")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:4d}  {reason}")
    terminalreporter.line(f"{sum(reasons.values()):4d}  in all")
    if terminalreporter.config.getoption(SKIPS_OPTION):
        for reason in _not_allowed(reasons):
            terminalreporter.line(f"FAILED: skipped without leave: {reason}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and session.config.getoption(SKIPS_OPTION) and _not_allowed(_skips(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skips(reporter: pytest.TerminalReporter) -> Counter[str]:
    return Counter(_reason(report) for report in reporter.stats.get("skipped", []))


def _not_allowed(reasons: Counter[str]) -> list[str]:
    lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
    allowed = {line.split(" | ")[0].strip() for line in lines if line.strip() and not line.startswith("#")}
    return [reason for reason in reasons if reason not in allowed]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")
