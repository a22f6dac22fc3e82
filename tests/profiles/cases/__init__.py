"""All cases: importing a file of this folder adds its own to CASES."""

from profiles.cases import memory, outputs, ranks, weights, widths
from profiles.cases.case import CASES, Case

__all__ = ["CASES", "Case", "memory", "outputs", "ranks", "weights", "widths"]
