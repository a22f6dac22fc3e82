"""Check that every relative link in the repository's Markdown files leads to a file and, where it names one, a heading.

python -m tools.check_links
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def broken_links(page: Path) -> list[str]:
    """Return one sentence for each relative link of a page that leads nowhere; other hosts are not asked."""
    broken = []
    for found in _LINK.finditer(_CODE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = found["target"].partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{page}: {found['target']} leads to no file")
        elif anchor and anchor not in _anchors(target):
            broken.append(f"{page}: {found['target']} leads to no heading of {target.name}")
    return broken


def _anchors(page: Path) -> set[str]:
    """Return the anchors that code hosts make of a page's headings: lower case, spaces to dashes, no punctuation."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main() -> int:
    """Check all pages that git knows; return 1 when a link is broken."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    pages = [ROOT / name for name in listed.split("\0") if name]
    broken = [sentence for page in pages if page.exists() for sentence in broken_links(page)]
    for sentence in broken:
        print(sentence, file=sys.stderr)
    print(f"docs: {len(pages)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
