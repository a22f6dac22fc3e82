"""A verdict: what was asked for, planned, or a refusal, which by its type has at least one reason.

A reason is a Violation: where, what came, what was expected, what to do. Layers that break a rule alike are told once.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


def merge(found: Sequence[Violation]) -> tuple[Violation, ...]:
    """Say a rule once that many layers break, in the words of the first of them and with their number.

    What came may name the layer; layers that differ in that alone are alike.
    """
    alike: dict[tuple[str, ...], list[Violation]] = {}
    for violation in found:
        alike.setdefault(_without_place(violation), []).append(violation)
    return tuple(_told_once(violations) for violations in alike.values())


def _without_place(violation: Violation) -> tuple[str, ...]:
    own = re.compile(rf"(?<![\w.]){re.escape(violation.where)}(?!\w)")
    return own.sub("", violation.got), violation.expected, violation.remedy


def _told_once(alike: list[Violation]) -> Violation:
    first, places = alike[0], dict.fromkeys(violation.where for violation in alike)
    where = first.where if len(places) == 1 else f"{first.where} and {len(places) - 1} more"
    return Violation(where, first.got, first.expected, first.remedy)


def rejection_of(sentences: Sequence[str]) -> ConfigError:
    """The error that tells all reasons at once."""
    lines = [f"--quantization megamoe cannot serve this, {len(sentences)} rule(s) violated:"]
    lines += [f"  {i}. {sentence}" for i, sentence in enumerate(sentences, 1)]
    return ConfigError("\n".join(lines))
