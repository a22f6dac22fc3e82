"""Where things are: the clone, its virtual environment, the lock, the log, the stamp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Places:
    """The paths of one set-up; `venv` need not exist yet."""

    root: Path
    venv: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def lock(self) -> Path:
        return self.root / "tools" / "requirements.lock"

    @property
    def log(self) -> Path:
        return self.venv / "setup.log"

    @property
    def stamp(self) -> Path:
        return self.venv / "setup.stamp"

    def site_packages(self) -> Path | None:
        """Return the environment's site-packages; None when there is not exactly one."""
        found = list(self.venv.glob("lib/python3.*/site-packages"))
        return found[0] if len(found) == 1 else None
