"""At the experts' rank: received records into output rows."""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.family import Family
from vllm_megamoe.ops.twin.routing import Arrivals


def compute(family: Family, records: Tensor, arrivals: Arrivals, weights: Tensor | None, hidden: int) -> Tensor:
    """uint8 [R, bytes] as received -> rows [kept, H] by expert, then source rank, then token.

    Args:
        family: arithmetic of the use case.
        records: as received; dropped ones are never looked at.
        arrivals: their places.
        weights: float32 [R, 1] router weights that multiply the activation, None when combine applies them.
        hidden: H.
    """
    order = arrivals.order[: arrivals.kept]
    rows = torch.empty(arrivals.kept, hidden, dtype=family.row_dtype)
    for expert, start, stop in arrivals.slices():
        chosen = order[start:stop]
        row_weights = None if weights is None else weights[chosen]
        rows[start:stop] = family.expert(expert, records[chosen], row_weights)
    return rows
