"""What code asked the stand-ins for, by full name; a rank hands it back with its answers."""

from collections import Counter
from collections.abc import Callable
from typing import Any

asked: Counter[str] = Counter()


def note(name: str) -> None:
    """Count one request."""
    asked[name] += 1


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
