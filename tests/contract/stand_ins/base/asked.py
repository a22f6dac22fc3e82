"""What code asked the stand-ins for, by full name; a rank hands it back with its answers."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "CONTRACT_FOLDER"
"""Where processes that no scene speaks to leave what they saw: a line a request, a file a process."""

asked: Counter[str] = Counter()


def note(name: str) -> None:
    """Count one request."""
    asked[name] += 1
    leave("asked", name)


def leave(kind: str, line: str) -> None:
    """Add a line to this process's file of that kind, where a folder for such files is named."""
    folder = os.environ.get(FOLDER)
    if folder:
        with (Path(folder) / f"{kind}.{os.getpid()}").open("a") as file:
            file.write(f"{line}\n")


def answering(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`: a name in CamelCase is an empty class, any other a function that must not be called."""

    def answer(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{module}.{name}"
        note(full)
        return type(name, (), {}) if name[:1].isupper() else _rejecting(full)

    return answer


def _rejecting(full: str) -> Callable[..., Any]:
    def reject(*arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{full} stands in the contract suite as a name alone; nothing here runs it")

    return reject
