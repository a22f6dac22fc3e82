"""Checkouts of the operator's repository that `make contract OPERATOR=PATH[,PATH]` names: read, never written."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("torch_extension") / "cann_ops_transformer"
WRAPPER = PACKAGE / "ops" / "mega_moe.py"
NEWER = "topk_weights_type"
"""An argument that the source of 2026-08 has and CANN 9.1.0 has not."""


@dataclass(frozen=True)
class Checkout:
    """One checkout.

    Attributes:
        root: its folder.
        revision: 9.1 or 9.2, by its wrapper's arguments.
        commit: as git says; empty where it is no clone.
    """

    root: Path
    revision: str
    commit: str

    @property
    def path_entry(self) -> Path:
        """The folder whose package `cann_ops_transformer` is the real one."""
        return self.root / "torch_extension"

    def files(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file of the package: what an import would leave behind shows."""
        found = sorted(path for path in (self.root / "torch_extension").rglob("*") if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def read(given: str) -> list[Checkout]:
    """The checkouts of a comma-separated list.

    Raises:
        ValueError: a path that is no checkout of ops-transformer.
    """
    found = []
    for text in filter(None, given.split(",")):
        root = Path(text).expanduser().absolute()
        if not (root / WRAPPER).is_file():
            raise ValueError(f"OPERATOR={text}: no file {WRAPPER} there; expected a checkout of ops-transformer")
        revision = "9.2" if NEWER in (root / WRAPPER).read_text(encoding="utf-8") else "9.1"
        found.append(Checkout(root, revision, _commit(root)))
    return found


def _commit(root: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
