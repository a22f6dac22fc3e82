"""Every test that docs/failures.md names exists, and no entry is missing."""

import ast
import re
from pathlib import Path

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ENTRY = re.compile(r"^\| (B\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
# Numbers that the list of reports leaves out.
GAPS = {24, 31, 35, 36, 38, 39, 42, 46, 47, 51, 56, 60, 63}


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists(repository: Path) -> None:
    named = NAMED.findall((repository / "docs" / "failures.md").read_text(encoding="utf-8"))
    missing = [f"{file}::{name}" for file, name in named if name not in names_in(repository / file)]
    assert len(named) > 50
    assert missing == []


def test_every_entry_has_a_test_or_a_reason(repository: Path) -> None:
    rows = ENTRY.findall((repository / "docs" / "failures.md").read_text(encoding="utf-8"))
    expected = [f"B{n:02}" for n in range(1, 75) if n not in GAPS]
    assert [entry for entry, _, _ in rows] == expected
    assert all(NAMED.search(holds) or holds.count(" ") > 8 for _, _, holds in rows)


def test_every_test_named_after_an_entry_is_in_the_table(repository: Path) -> None:
    table = (repository / "docs" / "failures.md").read_text(encoding="utf-8")
    written = {
        f"{path.relative_to(repository)}::{name}"
        for path in (repository / "tests" / "failures").glob("test_b*.py")
        for name in names_in(path)
        if re.match(r"test_b\d\d_", name)
    }
    assert sorted(name for name in written if f"`{name}`" not in table) == []
