"""Where things of the contract environment are: its locks, and vllm-ascend's source distribution."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.setup_env.pins import Pin
from tools.setup_env.places import ROOT, Places
from tools.setup_env.say import SetupError

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements.lock"
ASCEND_LOCK = HERE / "vllm_ascend.lock"
DEFAULT_VENV = ROOT / ".venv-contract"


@dataclass(frozen=True)
class ContractPlaces(Places):
    """The paths of one set-up. What is not named here is as in `.venv`."""

    @property
    def lock(self) -> Path:
        return LOCK

    @property
    def ascend_lock(self) -> Path:
        return ASCEND_LOCK

    @property
    def sources(self) -> Path:
        """Holds the source distribution as downloaded, and below `unpacked` the parts that tests read."""
        return self.venv / "vllm-ascend"

    @property
    def unpacked(self) -> Path:
        return self.sources / "unpacked"


def ascend_pin(lock: Path = ASCEND_LOCK) -> Pin:
    """Return the release that vllm_ascend.lock names; SetupError when it names none or several."""
    lines = [line.split() for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = [line for line in lines if line]
    if len(found) != 1 or "==" not in found[0][0] or not found[0][-1].startswith("--hash=sha256:"):
        raise SetupError(
            f"{lock.name} holds {len(found)} lines; expected one, `vllm-ascend==VERSION --hash=sha256:HASH`; "
            f"restore it with `git checkout -- {lock.name}` in its folder"
        )
    name, version = found[0][0].split("==")
    return Pin(name, version)
