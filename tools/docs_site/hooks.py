"""What the site needs beyond docs/: README and changelog as pages, and links that leave docs/.

A link into the repository's other files is shown as the file's name: the site has no copy of them.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^(```\w+) \w+$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside of docs/."""
    for page, source in _PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at pages of the site, and name files that are none. Tags of code blocks are for tests alone."""
    here = page.file.src_uri
    base = ROOT if here in _PAGES else ROOT / "docs"

    def point(found: "re.Match[str]") -> str:
        path, _, anchor = found["target"].partition("#")
        if "://" in path or not path:
            return found[0]
        place = (base / path).resolve()
        own = {str(ROOT / source): name for name, source in _PAGES.items()}
        if str(place) in own:
            return f"[{found['text']}]({own[str(place)]}{'#' + anchor if anchor else ''})"
        if place.is_relative_to(ROOT / "docs"):
            return f"[{found['text']}]({place.relative_to(ROOT / 'docs')}{'#' + anchor if anchor else ''})"
        name = place.relative_to(ROOT)
        return found["text"] if found["text"].strip("`") == str(name) else f"{found['text']} (`{name}`)"

    return _FENCE.sub(r"\1", _LINK.sub(point, markdown))
