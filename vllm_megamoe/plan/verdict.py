"""One broken rule of a plan."""

from dataclasses import dataclass

from vllm_megamoe.profiles.facts import Broken


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, what came, what was wanted, what to do."""

    where: str
    got: str
    wanted: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.got}; wanted {self.wanted}. {self.remedy}"


def of_product(profile: str, broken: Broken) -> Violation:
    """A rule of the product, as the plan says it."""
    wanted = f"{broken.wanted} ({broken.source})"
    if broken.silent:
        wanted += f"; the device would not refuse: {broken.silent}"
    return Violation(profile, f"{broken.argument}={broken.value}", wanted, broken.remedy)
