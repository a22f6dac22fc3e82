"""How a step's rows are cut into calls: the same number of calls on all ranks, whatever each of them brings."""

from dataclasses import dataclass
from itertools import pairwise

from vllm_megamoe.plan.capacity import Capacity, step_calls


@dataclass(frozen=True, slots=True)
class Piece:
    """One call's part of a step.

    Attributes:
        start, stop: this rank's rows in it; none when it has fewer rows than the step has calls.
        rows: rows that the call brings after padding.
    """

    start: int
    stop: int
    rows: int


def cut_step(own: int, largest: int, capacity: Capacity) -> list[Piece]:
    """Cut `own` rows of this rank evenly into the calls of a step whose largest rank brings `largest`.

    The number of calls and, unless `capacity.pad` is `own`, the rows of each depend on `largest` alone, which is the
    same on all ranks; so a rank without rows makes as many calls as the others (B09, B17). Every call has at least one
    row, because the device takes no call without (operator_readme.txt, BS).
    """
    calls, most = step_calls(largest, capacity.chunk)
    bounds = [own * n // calls for n in range(calls + 1)]
    # A piece holds at most ceil(own / calls) rows, and that is at most `most`, because own is at most largest.
    common = {"own": 1, "dp_max": most, "num_max": capacity.chunk}[capacity.pad]
    return [Piece(start, stop, max(stop - start, common)) for start, stop in pairwise(bounds)]
