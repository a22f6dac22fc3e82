"""The stamp of the contract environment: as that of `.venv`, with this folder's own files and vllm-ascend."""

from __future__ import annotations

import hashlib

from tools.contract_env.places import HERE, ContractPlaces, ascend_pin
from tools.setup_env import stamp as base
from tools.setup_env.pins import Pin


def key(places: ContractPlaces) -> str:
    """Return a hash of all that decides what is installed."""
    digest = hashlib.sha256(base.key(places).encode())
    for path in [places.ascend_lock, *sorted(HERE.glob("*.py"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def reason_to_run(places: ContractPlaces, pins: list[Pin]) -> str | None:
    """Return why set-up has to run, or None when the environment is as the stamp says."""
    reason = base.reason_to_run(places, [*pins, ascend_pin(places.ascend_lock)], key(places))
    if reason is None and not (places.unpacked / "tests").is_dir():
        return "not there any more: the unpacked tests of vllm-ascend"
    return reason


def write(places: ContractPlaces) -> None:
    """Declare the environment whole."""
    base.write(places, key(places))
