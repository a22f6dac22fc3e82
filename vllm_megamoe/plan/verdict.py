"""A verdict: what was asked for, planned, or a refusal, which by its type has at least one reason.

A reason is a Violation: where, what came, what was expected, what to do. Layers that break a rule alike are told once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.facts import Broken


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, what came, what was expected, what to do."""

    where: str
    got: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.got}; expected {self.expected}. {self.remedy}"


D = TypeVar("D", covariant=True)


@dataclass(frozen=True, slots=True, init=False)
class Rejected(Generic[D]):
    """A refusal.

    Attributes:
        first, more: the broken rules, each told once.
        draft: as much as could be planned all the same, for a reader; nothing runs it.
    """

    first: Violation
    more: tuple[Violation, ...]
    draft: D

    def __init__(self, first: Violation, *more: Violation, draft: D) -> None:
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "more", more)
        object.__setattr__(self, "draft", draft)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All of them, at least one."""
        return self.first, *self.more

    def beside(self, before: Iterable[Violation], *others: object) -> "Rejected[D]":
        """The same refusal with the reasons that others found: `before` its own, and of each refusal among `others`."""
        head = list(before)
        tail = [violation for other in others if isinstance(other, Rejected) for violation in other.violations]
        first, *more = (*head, *self.violations, *tail)
        return Rejected(first, *more, draft=self.draft)


def of_product(profile: str, broken: Broken) -> Violation:
    """A rule of the product, as the plan says it."""
    expected = f"{broken.expected} ({broken.source})"
    if broken.silent:
        expected += f"; the device would not reject: {broken.silent}"
    return Violation(profile, f"{broken.argument}={broken.value}", expected, broken.remedy)


def told_once(found: Iterable[Broken]) -> list[Broken]:
    """Rules that say the same of the same argument as one, with the sources of all: creation and call often do."""
    alike: dict[Broken, dict[str, None]] = {}
    for broken in found:
        sources = alike.setdefault(replace(broken, source="", rule=""), {})
        sources |= dict.fromkeys(broken.source.split("; "))
    return [replace(broken, source="; ".join(sources)) for broken, sources in alike.items()]


def merge(found: Sequence[Violation]) -> tuple[Violation, ...]:
    """Say a rule once that many layers break, with the first of them and their number."""
    places: dict[tuple[str, str, str], dict[str, None]] = {}
    for v in found:
        places.setdefault((v.got, v.expected, v.remedy), {})[v.where] = None
    return tuple(Violation(_counted(list(where)), *rule) for rule, where in places.items())


def _counted(places: list[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"


def rejection_of(sentences: Sequence[str]) -> ConfigError:
    """The error that tells all reasons at once."""
    lines = [f"--quantization megamoe cannot serve this, {len(sentences)} rule(s) violated:"]
    lines += [f"  {i}. {sentence}" for i, sentence in enumerate(sentences, 1)]
    return ConfigError("\n".join(lines))
