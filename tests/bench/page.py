"""docs/benchmarks.md in sections, each written by a script of its own: `## TITLE`, its text, up to the next `## `."""

from pathlib import Path


def put_section(page: Path, title: str, text: str) -> None:
    """Replace a section of a page, or add it at the end.

    Args:
        page: the file; it need not be there yet.
        title: the heading's whole line, such as `## Start-up`.
        text: without the heading.
    """
    old = page.read_text() if page.exists() else ""
    head, found, rest = f"\n{old}".partition(f"\n{title}\n")
    _, following, behind = rest.partition("\n## ")
    parts = [head.strip(), f"{title}\n\n{text.strip()}", f"## {behind.strip()}" if found and following else ""]
    page.write_text("\n\n".join(part for part in parts if part) + "\n")


def put_first(page: Path, text: str) -> None:
    """Replace all that stands before the first section."""
    old = page.read_text() if page.exists() else ""
    _, following, behind = old.partition("\n## ")
    page.write_text(f"{text.strip()}\n" + (f"\n## {behind.strip()}\n" if following else ""))
