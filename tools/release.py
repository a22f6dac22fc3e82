"""Check that a tag may be released: it is the version, and the changelog has closed it.

python -m tools.release v0.2.0
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<day>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Sentences about what stands in the way of a release, none where nothing does."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    found = []
    if tag != f"v{version}":
        found.append(
            f"tag {tag}; expected v{version}, the version in pyproject.toml. Tag again, or change the version."
        )
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = list(_HEADING.finditer(text))
    closed = [section for section in sections if section["version"] == version and section["day"]]
    if not closed:
        found.append(
            f"CHANGELOG.md: no section [{version}] with a day; expected `## [{version}] - YYYY-MM-DD`. Close it."
        )
    for number, section in enumerate(sections):
        if section["version"] == "Unreleased":
            end = sections[number + 1].start() if number + 1 < len(sections) else len(text)
            if text[section.end() : end].strip():
                found.append("CHANGELOG.md: [Unreleased] is not empty; expected its lines in the version's section.")
    return found


def main(arguments: Sequence[str]) -> int:
    """Say what is wrong; return 1 where something is."""
    if len(arguments) != 1:
        print("python -m tools.release TAG", file=sys.stderr)
        return 2
    found = problems(arguments[0])
    for sentence in found:
        print(f"release: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
