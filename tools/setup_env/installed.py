"""What is installed in an environment, read from its files: no process is started, so a look costs milliseconds."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

from tools.setup_env.pins import Pin, same_name

_DIST_INFO = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")


def versions(site_packages: Path) -> dict[str, str]:
    """Return normalised name -> version of every distribution whose record of files is there."""
    found = {}
    for folder in site_packages.glob("*.dist-info"):
        parts = _DIST_INFO.fullmatch(folder.name)
        if parts is not None and (folder / "RECORD").is_file():
            found[same_name(parts["name"])] = parts["version"]
    return found


def missing(site_packages: Path, pins: list[Pin]) -> list[Pin]:
    """Return the pins that are not installed in exactly this version."""
    have = versions(site_packages)
    return [pin for pin in pins if have.get(same_name(pin.name)) != pin.version]


def forget_damaged(site_packages: Path) -> list[str]:
    """Remove the metadata of distributions that are installed in part, so that pip installs them again.

    An installation that was killed leaves metadata which pip takes for a whole distribution. A whole one has a RECORD,
    and every file that the RECORD names, with the size that it says.
    """
    damaged = []
    for folder in sorted(site_packages.glob("*.dist-info")):
        if not _is_whole(folder, site_packages):
            shutil.rmtree(folder)
            damaged.append(folder.name[: -len(".dist-info")])
    return damaged


def _is_whole(dist_info: Path, site_packages: Path) -> bool:
    record = dist_info / "RECORD"
    if not record.is_file():
        return False
    with record.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.reader(lines) if len(row) == 3]
    return bool(rows) and all(_is_as_recorded(site_packages / name, size) for name, _, size in rows)


def _is_as_recorded(path: Path, size: str) -> bool:
    # Byte code is written anew by any Python, and the RECORD does not name its own size.
    if not size or path.suffix == ".pyc":
        return True
    return path.is_file() and path.stat().st_size == int(size)
