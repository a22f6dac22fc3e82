"""One broken rule of a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

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


def of_product(profile: str, broken: Broken) -> Violation:
    """A rule of the product, as the plan says it."""
    expected = f"{broken.expected} ({broken.source})"
    if broken.silent:
        expected += f"; the device would not reject: {broken.silent}"
    return Violation(profile, f"{broken.argument}={broken.value}", expected, broken.remedy)


def rejection_of(sentences: Sequence[str]) -> ConfigError:
    """The error that tells all reasons at once."""
    lines = [f"--quantization megamoe cannot serve this, {len(sentences)} rule(s) violated:"]
    lines += [f"  {i}. {sentence}" for i, sentence in enumerate(sentences, 1)]
    return ConfigError("\n".join(lines))
