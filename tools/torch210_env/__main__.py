"""Make .venv-2.10, or do nothing when it is as it should be: `python3 -m tools.torch210_env [--venv DIR]`."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.setup_env import stamp, steps
from tools.setup_env.__main__ import run
from tools.setup_env.commands import run_logged
from tools.setup_env.pins import Pin
from tools.setup_env.places import ROOT, Places
from tools.setup_env.say import SetupError
from tools.torch210_env import stand_ins

HERE = Path(__file__).resolve().parent
DEFAULT_VENV = ROOT / ".venv-2.10"


@dataclass(frozen=True)
class Torch210Places(Places):
    """The paths of one set-up. What is not named here is as in `.venv`."""

    @property
    def lock(self) -> Path:
        return HERE / "requirements.lock"


def main() -> int:
    """Return 0 when the environment is whole, 1 after saying why it is not."""
    costs = "a minute or two and 2.5 GB of disk"
    return run("torch210_env", __doc__, DEFAULT_VENV, costs, Torch210Places, _reason_to_run, run_steps)


def _reason_to_run(places: Torch210Places, pins: list[Pin]) -> str | None:
    return stamp.reason_to_run(places, pins, _key(places))


def run_steps(places: Torch210Places, pins: list[Pin]) -> None:
    """Bring the environment to what the lock says and stamp it; SetupError from the step that fails."""
    places.stamp.unlink(missing_ok=True)
    steps.make_environment(places)
    (places.venv / ".gitignore").write_text("*\n", encoding="utf-8")
    steps.install_lock(places, pins)
    site_packages = places.site_packages()
    if site_packages is None:
        raise SetupError(f"{places.venv} has no site-packages; remove the folder and run the same command again")
    stand_ins.write(site_packages / "torch", places.log)
    steps.install_itself(places)
    code = "import torch; assert torch.__version__.startswith('2.10.'), torch.__version__; torch.ones(2, 2).matmul"
    advice = "Remove the environment's folder and run the same command again; if it fails again, report the log."
    run_logged([str(places.python), "-c", code], places.log, "torch 2.10 does not work", advice)
    stamp.write(places, _key(places))


def _key(places: Torch210Places) -> str:
    digest = hashlib.sha256(stamp.key(places).encode())
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
