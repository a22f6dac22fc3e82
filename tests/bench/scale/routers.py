"""How unevenly a router loads the ranks of a layer: rows of the fullest rank over the mean, and rows of all.

Routers choose `topk` distinct experts for a token, the i-th most popular expert with a weight of i^-skew (0 is uniform,
1 Zipf's law). Which expert is how popular is drawn anew for each trial, because no checkpoint sorts its experts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TRIALS = 3
DOCUMENT = 512
"""Tokens of a document of `recorded`."""
_STATE = 64


@dataclass(frozen=True)
class Imbalance:
    """Rows of the fullest rank over the mean: that of the median trial, and the largest of all trials."""

    median: float
    worst: float


def draw(tokens: int, experts: int, topk: int, skew: float, generator: torch.Generator) -> Tensor:
    """Ids int64 [tokens, topk] of a router of this skew.

    The largest of log weight + Gumbel noise are a draw without replacement, in the order of the draws.
    """
    place = torch.randperm(experts, generator=generator).double() + 1
    noise = -torch.empty(tokens, experts).exponential_(generator=generator).log()
    return (noise - skew * place.log().float()).topk(topk).indices


def rank_rows(ids: Tensor, experts: int, ep_size: int) -> Tensor:
    """int64 [ep_size], rows that each rank receives; rank r holds experts [r * E / ep, (r + 1) * E / ep)."""
    counts = torch.bincount(ids.flatten(), minlength=experts)
    return counts.view(ep_size, -1).sum(dim=1)


def fullness(ids: Tensor, experts: int, ep_size: int) -> float:
    """Rows of the fullest rank over the mean."""
    rows = rank_rows(ids, experts, ep_size)
    return float(rows.max() / rows.double().mean())


def imbalance(tokens: int, experts: int, topk: int, skew: float, ep_size: int) -> Imbalance:
    """Of `TRIALS` routers of this skew, in a step of so many tokens of all ranks together."""
    generator = torch.Generator().manual_seed(ep_size)
    found = sorted(fullness(draw(tokens, experts, topk, skew, generator), experts, ep_size) for _ in range(TRIALS))
    return Imbalance(found[TRIALS // 2], found[-1])


def recorded(tokens: int, experts: int, topk: int) -> Tensor:
    """Ids int64 [tokens, topk] of a linear router of Gaussian weights over documents of 512 tokens, one after another.

    Half of a token's hidden state is its document's, so that tokens of a document like the same experts: a step of few
    documents loads few ranks, however even all documents together are.
    """
    generator = torch.Generator().manual_seed(experts)
    router = torch.randn(_STATE, experts, generator=generator)
    found = []
    for at in range(0, tokens, DOCUMENT):
        topic = torch.randn(_STATE, generator=generator)
        states = topic + torch.randn(min(DOCUMENT, tokens - at), _STATE, generator=generator)
        found.append((states @ router).topk(topk).indices)
    return torch.cat(found)


def replayed(ids: Tensor, tokens: int, experts: int, ep_size: int) -> Imbalance:
    """Of recorded ids [all, topk], in consecutive steps of so many tokens; those that are left over do not count.

    Raises:
        ValueError: fewer tokens were recorded than a step has, or an id is no expert's.
    """
    if ids.dim() != 2 or len(ids) < tokens or int(ids.min()) < 0 or int(ids.max()) >= experts:
        raise ValueError(f"ids {list(ids.shape)}; expected [{tokens} or more, topk] ids of {experts} experts")
    found = sorted(fullness(step, experts, ep_size) for step in ids.split(tokens) if len(step) == tokens)
    return Imbalance(found[len(found) // 2], found[-1])
