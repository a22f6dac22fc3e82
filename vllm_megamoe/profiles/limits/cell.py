"""One cell of the table: a value and where it comes from."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell(Generic[T]):
    """A limit.

    Attributes:
        value: what holds.
        source: document and line numbers, or code with its commit; all of them where they differ, the stricter first.
    """

    value: T
    source: str
