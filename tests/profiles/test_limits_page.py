"""docs/limits.md is what the table says."""

from dataclasses import fields
from pathlib import Path

from tools.write_limits import COLUMNS, ROWS, page
from vllm_megamoe.profiles.limits import TABLE, Limits
from vllm_megamoe.profiles.profile import PROFILE_NAMES
from vllm_megamoe.profiles.rules import RULES


def test_the_committed_page_is_current(repository: Path) -> None:
    committed = (repository / "docs" / "limits.md").read_text(encoding="utf-8")
    assert committed == page(), "run python -m tools.write_limits"


def test_the_page_leaves_nothing_out() -> None:
    assert {field.name for field in fields(Limits)} == set(ROWS)
    assert {name for name, _ in COLUMNS.values()} == set(PROFILE_NAMES) - {"none"}
    assert set(COLUMNS.values()) <= set(TABLE)
    assert all(f"| {rule.id} | {rule.at} | " in page() for rule in RULES)
    assert all(rule.about.endswith(".") or rule.about.endswith(":") for rule in RULES)


def test_figures_on_the_page() -> None:
    # torch_api.txt:442, operator_readme.txt:572,584
    text = page()
    assert "in [1024, 3072] and a multiple of 512" in text
    assert "in [256, 4096] and a multiple of 128" in text
    assert "| shared experts at most | 0 | 0 | 0 | 0 | 0 | 4 | 4 |" in text
