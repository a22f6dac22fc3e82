"""How many rows a rank must have room for: the least that can lose none, and what a smaller value covers.

A call brings T = num_max_tokens_per_rank x ranks tokens. Each goes to topk distinct experts, so a rank gets at most

    bound = T x min(topk, experts_per_rank)            (B02, B03; W4A8 of CANN 9.1.0 on A3 must be told twice that, B05)

and topk x num_max_tokens_per_rank when all experts are equally popular. What lies between is a question of the router.
The model for it: the popularity of E experts is drawn for each layer from a symmetric Dirichlet distribution with the
parameter `evenness`. The share of a rank that holds e of them is then Beta(e x evenness, (E - e) x evenness), those
of all ranks are Dirichlet again (aggregation property), and rank r gets min(T x topk x share, bound) rows. So `covered`
is the share of routers whose fullest rank has room; the rows of a call are taken at their expected number.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_megamoe.plan.capacity import receive_factor
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.sizes.memory import workspace_bytes

EVENNESS = (10.0, 1.0, 0.1)
"""Routers that are shown: nearly even, uneven, and a few experts that take nearly all."""
DRAWS = 4000
"""Routers that are drawn: a share of them is off by 0.8 points at most, one standard deviation."""
COVERED = 0.99
"""The share of routers for which a value is named."""


@dataclass(frozen=True, slots=True)
class Router:
    """One kind of router.

    Attributes:
        evenness: parameter of the distribution.
        fullest: expected share of all rows that the fullest rank gets, over that of an even router.
        covered: share of such routers that lose no row with the chosen value; None where none was chosen.
        enough: rows of room that lose none with COVERED of such routers.
    """

    evenness: float
    fullest: float
    covered: float | None
    enough: int


@dataclass(frozen=True, slots=True)
class Receive:
    """The receive capacity of one kind of layer.

    Attributes:
        rows: most rows of a call of one rank.
        ranks: of the communicator.
        even: rows that a rank gets from an even router.
        smallest: the smallest max_recv_token_num that cannot lose a row, but for 0, which is as good where it is taken.
        zero_is_enough: whether 0 is.
        smallest_bytes: workspace of a rank with it; 0 in profile `none`.
        chosen: the value that was asked for, 0 for none.
        chosen_bytes: workspace with it.
        routers: see there.
    """

    rows: int
    ranks: int
    even: int
    smallest: int
    zero_is_enough: bool
    smallest_bytes: int
    chosen: int
    chosen_bytes: int
    routers: tuple[Router, ...]


def receive_of(layer: LayerPlan, chosen: int) -> Receive:
    """What a layer needs, and what a value covers.

    Args:
        layer: as it was planned.
        chosen: a max_recv_token_num, 0 for none.
    """
    buffer, capacity, topk = layer.buffer, layer.capacity, layer.facts.topk
    factor = receive_factor(layer.use_case, layer.profile)
    all_rows = capacity.chunk * layer.ep_size * topk
    routers = []
    for evenness in EVENNESS:
        shares = fullest_shares(buffer.experts_per_rank, layer.ep_size, evenness)
        rows = sorted(min(math.ceil(all_rows * share), capacity.receive_bound) for share in shares)
        enough = sum(factor * need <= chosen for need in rows)
        routers.append(
            Router(
                evenness,
                sum(shares) / len(shares) * layer.ep_size,
                enough / len(rows) if chosen else None,
                factor * rows[math.ceil(COVERED * len(rows)) - 1],
            )
        )
    smallest = factor * capacity.receive_bound
    return Receive(
        rows=capacity.chunk,
        ranks=layer.ep_size,
        even=capacity.chunk * topk,
        smallest=smallest,
        zero_is_enough=factor == 1,
        smallest_bytes=_workspace(layer, smallest),
        chosen=chosen,
        chosen_bytes=_workspace(layer, chosen),
        routers=tuple(routers),
    )


def fullest_shares(experts_per_rank: int, ranks: int, evenness: float) -> Sequence[float]:
    """The share of all rows that the fullest rank gets, for DRAWS routers; the same ones at each call."""
    rng, found = random.Random(0), []
    for _ in range(DRAWS):
        weights = [rng.gammavariate(experts_per_rank * evenness, 1.0) for _ in range(ranks)]
        found.append(max(weights) / sum(weights))
    return found


def _workspace(layer: LayerPlan, received: int) -> int:
    return workspace_bytes(
        layer.profile,
        replace(layer.buffer, max_recv_token_num=received),
        intermediate_hidden=layer.padding.intermediate_hidden,
        use_case=layer.use_case.value,
        shared_experts=layer.shared.pieces,
    )
