"""What each product and operator revision takes: one table, each cell with its source, and what follows from it alone.

The table is the only owner of these facts: rules, plan, sizes, the twin's checks and docs/limits.md read it.
"""

from collections.abc import Iterable

from vllm_megamoe.profiles.limits.a2_a3 import A2_91, A2_92, A3_91, A3_92
from vllm_megamoe.profiles.limits.ascend950 import ASCEND950_91, ASCEND950_92_MTE, ASCEND950_92_URMA
from vllm_megamoe.profiles.limits.none import NONE
from vllm_megamoe.profiles.limits.row import Cell, Limits, Numbers
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import UseCase

__all__ = ["MOST_RANKS", "TABLE", "Cell", "Limits", "Numbers", "legal_ep_sizes", "limits_of", "profiles_with"]

TABLE: dict[tuple[str, str], Limits] = {
    ("none", "mte"): NONE,
    ("none", "urma"): NONE,
    ("a2@9.1", "mte"): A2_91,
    ("a3@9.1", "mte"): A3_91,
    ("950@9.1", "mte"): ASCEND950_91,
    ("950@9.1", "urma"): ASCEND950_91,
    ("a2@9.2", "mte"): A2_92,
    ("a3@9.2", "mte"): A3_92,
    ("950@9.2", "mte"): ASCEND950_92_MTE,
    ("950@9.2", "urma"): ASCEND950_92_URMA,
}
"""By name and topology of the profile."""

MOST_RANKS = max(limits.ep_sizes.value.most or 0 for limits in TABLE.values())
"""No profile takes more ranks; the bound of a search under profile `none`, whose own row has none."""


def limits_of(profile: Profile) -> Limits:
    """The row of the table."""
    return TABLE[profile.name, profile.topology]


def profiles_with(use_case: UseCase) -> tuple[str, ...]:
    """Names of the profiles that run a use case, `none` left out."""
    names = (name for (name, _), limits in TABLE.items() if use_case in limits.use_cases.value and name != "none")
    return tuple(dict.fromkeys(names))


def legal_ep_sizes(limits: Limits, experts: Iterable[int]) -> tuple[int, ...]:
    """Numbers of ranks that a model can be spread over, ascending; empty where there is none.

    Args:
        experts: routed experts of each layer; a size must suit all of them.
    """
    counts = set(experts)
    if not counts or max(counts) > limits.max_experts.value:
        return ()
    return tuple(
        size
        for size in range(1, min(min(counts), MOST_RANKS) + 1)
        if size in limits.ep_sizes.value
        and all(n % size == 0 and n // size <= limits.max_experts_per_rank.value for n in counts)
    )
