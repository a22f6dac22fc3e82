"""Sizes that a product does not take are padded with zeros where that is exact, at a stated price.

Zero gate and up rows give an activation of 0 (every activation of the operator has A(0, 0) = 0), zero input columns add
nothing to a sum, and no amax over a row or group rises by a zero; so padding changes no result.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Padding:
    """Sizes as the operator gets them.

    Attributes:
        hidden, intermediate_hidden: padded sizes; the model's own where nothing is padded.
        hidden_was, intermediate_was: the model's.
    """

    hidden: int
    intermediate_hidden: int
    hidden_was: int
    intermediate_was: int

    @property
    def overhead(self) -> float:
        """Added weights and FLOPs as a fraction of the unpadded ones."""
        return self.hidden * self.intermediate_hidden / (self.hidden_was * self.intermediate_was) - 1

    def __bool__(self) -> bool:
        return (self.hidden, self.intermediate_hidden) != (self.hidden_was, self.intermediate_was)

    def __str__(self) -> str:
        parts = [
            f"{name} {was} -> {now}"
            for name, was, now in (
                ("hidden", self.hidden_was, self.hidden),
                ("intermediate_hidden", self.intermediate_was, self.intermediate_hidden),
            )
            if was != now
        ]
        return f"{', '.join(parts)} (+{self.overhead:.0%} weights and FLOPs)" if parts else "none"
