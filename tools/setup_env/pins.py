"""The version lock: one `name==version` a line, with an optional marker that names a machine."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from tools.setup_env.say import SetupError

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(\s*;\s*platform_machine\s*==\s*\"(?P<machine>\w+)\")?"
)


@dataclass(frozen=True)
class Pin:
    """One exact version."""

    name: str
    version: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def read_pins(lock: Path, machine: str | None = None) -> list[Pin]:
    """Return the pins that apply to this kind of machine (`platform.machine()`).

    Raises SetupError for a line that is neither a comment nor a pin.
    """
    machine = machine or platform.machine()
    pins = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise SetupError(
                f"{lock.name}, line {number}: {text!r} is not `name==version`; "
                f"restore the file with `git checkout -- {lock.name}` in its folder"
            )
        if found["machine"] in (None, machine):
            pins.append(Pin(found["name"], found["version"]))
    return pins


def find_pin(pins: list[Pin], name: str) -> Pin:
    """Return the pin of one distribution; SetupError when the lock has none."""
    for pin in pins:
        if same_name(pin.name) == same_name(name):
            return pin
    raise SetupError(f"the lock has no line for {name}; renew it as docs/development.md says")


def same_name(name: str) -> str:
    """Return the spelling in which two names of one distribution are equal (PyPA's name normalisation)."""
    return re.sub(r"[-_.]+", "-", name).lower()
