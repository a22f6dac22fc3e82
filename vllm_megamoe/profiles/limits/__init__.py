"""What each product and operator revision takes: one table, each cell with its source."""

from vllm_megamoe.profiles.limits.a2_a3 import A2_91, A2_92, A3_91, A3_92
from vllm_megamoe.profiles.limits.ascend950 import ASCEND950_91, ASCEND950_92_MTE, ASCEND950_92_URMA
from vllm_megamoe.profiles.limits.none import NONE
from vllm_megamoe.profiles.limits.row import Cell, Limits, Numbers
from vllm_megamoe.profiles.profile import Profile

__all__ = ["TABLE", "Cell", "Limits", "Numbers", "limits_of"]

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


def limits_of(profile: Profile) -> Limits:
    """The row of the table."""
    return TABLE[profile.name, profile.topology]
