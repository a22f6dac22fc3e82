"""docs/benchmarks.md says how it was measured, as `make bench` measures; and `make bench` tells how far it is."""

from pathlib import Path

import pytest
from bench.bench_operator import REPEATS, ROWS, introduction, medians, rounds
from bench.layers import expert_bytes
from bench.page import put_first, put_section


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
    assert [rounds(rows, 9) for rows in ROWS] == [9, 9, 9, 9, 9, 9, 2, 2]
    assert rounds(1024, 1) == 1


def test_the_bound_counts_a_weight_once_at_its_own_width() -> None:
    names = ("vLLM CPU MoE, BF16", "mega_moe twin, a16w16", "mega_moe twin, a8w8-fp", "mega_moe twin, a8w4-int")
    assert [expert_bytes(name) / (2048 * 1024 * 3) for name in names] == [2, 2, 1, 0.5]


def test_a_section_is_replaced_in_its_place_and_added_at_the_end(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    put_first(page, "# Top\n\nfirst")
    put_section(page, "## A", "one\n")
    put_section(page, "## B", "two")
    put_section(page, "## A", "three\n\n### Part\n\nfour")
    put_first(page, "# Top\n\nsecond")
    assert page.read_text() == "# Top\n\nsecond\n\n## A\n\nthree\n\n### Part\n\nfour\n\n## B\n\ntwo\n"
