"""A set of integers as the documents write them: a range, a multiple, or a list."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """Integers that a parameter may have.

    Attributes:
        least, most: bounds, both included; no upper one where `most` is None.
        step: all are multiples of it.
        only: the allowed ones, where the document lists them; the other attributes follow from it.
    """

    least: int
    most: int | None = None
    step: int = 1
    only: tuple[int, ...] = ()

    @classmethod
    def listed(cls, *numbers: int) -> "Numbers":
        """These and no others, in ascending order."""
        return cls(numbers[0], numbers[-1], 1, numbers)

    def __contains__(self, number: int) -> bool:
        if self.only:
            return number in self.only
        return self.least <= number and (self.most is None or number <= self.most) and number % self.step == 0

    def at_least(self, number: int) -> int | None:
        """The smallest allowed one that is not below `number`, None when there is none."""
        if self.only:
            return next((n for n in self.only if n >= number), None)
        found = -(-max(number, self.least) // self.step) * self.step
        return found if found in self else None

    def __str__(self) -> str:
        if self.only:
            return "one of " + ", ".join(map(str, self.only))
        bounds = f"at least {self.least}" if self.most is None else f"in [{self.least}, {self.most}]"
        return bounds if self.step == 1 else f"{bounds} and a multiple of {self.step}"
