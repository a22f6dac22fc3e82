"""Which sizes of the expert-parallel communicator a profile takes for a model."""

from collections.abc import Iterable

from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.profiles.limits import limits_of
from vllm_megamoe.profiles.profile import Profile

_MOST = 1024
"""No profile takes more ranks (docs/limits.md)."""
_USUAL = 8
"""Ranks of one host, the size that is chosen where none was asked for."""


def legal_ep_sizes(layers: Iterable[MoeFacts], profile: Profile) -> tuple[int, ...]:
    """Sizes that divide the experts of every layer and stay within the profile's limits, ascending."""
    limits = limits_of(profile)
    counts = {layer.num_experts for layer in layers}
    return tuple(
        size
        for size in range(1, min(max(counts, default=0), _MOST) + 1)
        if size in limits.ep_sizes.value
        and all(n % size == 0 and n // size <= limits.max_experts_per_rank.value for n in counts)
    )


def usual_size(legal: tuple[int, ...], profile: Profile) -> int:
    """The size to plan for where the user names none: 1 without a product, else the largest legal one up to 8."""
    if profile.product == "none":
        return 1
    return max((size for size in legal if size <= _USUAL), default=min(legal, default=_USUAL))
