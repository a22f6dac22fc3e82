"""On how many ranks the experts of a token sit."""

from math import comb


def expected_cards(ep_world_size: int, num_experts: int, topk: int) -> float:
    """Expected number of distinct ranks among a token's experts, when every choice of k of them is equally likely.

    A rank is missed with probability C(E - E/ep, k) / C(E, k).
    """
    per_rank = num_experts // ep_world_size
    missed = comb(num_experts - per_rank, topk) / comb(num_experts, topk)
    return ep_world_size * (1.0 - missed)


def most_cards(ep_world_size: int, topk: int) -> int:
    """Distinct ranks in the worst case."""
    return min(ep_world_size, topk)
