"""docs/benchmarks.md says how it was measured, as `make bench` measures; and `make bench` tells how far it is."""

from pathlib import Path

import pytest
from bench.bench_operator import REPEATS, ROWS, introduction, medians, rounds


def test_the_page_says_what_is_run(repository: Path) -> None:
    assert (repository / "docs" / "benchmarks.md").read_text().startswith(introduction(ROWS, REPEATS))


def test_every_round_is_run_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    found = medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds(64, 3), "64 rows")
    assert calls == ["a", "b"] * 4
    assert found.keys() == {"a", "b"}
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["bench: 64 rows, warm-up", *(f"bench: 64 rows, round {n} of 3" for n in (1, 2, 3))]


def test_large_steps_take_fewer_rounds() -> None:
    assert [rounds(rows, 5) for rows in ROWS] == [5, 5, 5, 2]
    assert rounds(1024, 1) == 1
