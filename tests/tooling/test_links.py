"""The documents' links lead somewhere, and the check that says so can tell."""

from pathlib import Path

from tools import check_links


def test_no_link_of_the_repository_is_broken() -> None:
    assert check_links.main() == 0


def test_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-heading-with-code) [c](https://example.org/x) `[d](not-a-link.md)`\n"
        "[e](missing.md) [f](there.md#other) [g](#nowhere)\n```\n[h](in-code.md)\n```\n"
    )
    told = [sentence.removeprefix(f"{page}: ").split()[0] for sentence in check_links.broken_links(page)]
    assert told == ["missing.md", "there.md#other", "#nowhere"]
