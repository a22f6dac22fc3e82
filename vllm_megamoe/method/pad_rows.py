"""Rows that fill a call up to its size: no expert sees them, and their results are cut off again."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class CallRows:
    """The rows of one call: x [R, H], topk_ids int32 [R, K], topk_weights [R, K], mask int8 [R] or None."""

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    mask: Tensor | None = None


def pad_rows(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, rows: int, *, masked: bool) -> CallRows:
    """Add zero rows behind the n given ones until there are `rows`; nothing is copied when there are already.

    Args:
        x, topk_ids, topk_weights: [n, H], [n, K], [n, K].
        rows: n or more.
        masked: say it with a mask (A2/A3, x_active_mask). The operator overwrites the ids of masked rows in place, so
            it gets a copy (B20); their ids are distinct and in range until then, which the documents demand of every
            row (B21). Without a mask (950 has none) ids of -1 say it: they match no expert (B18).
    """
    n = x.shape[0]
    if n == rows:
        return CallRows(x, topk_ids, topk_weights)
    below = (0, 0, 0, rows - n)
    x, topk_weights = pad(x, below), pad(topk_weights, below)
    if not masked:
        return CallRows(x, pad(topk_ids, below, value=-1), topk_weights)
    topk = topk_ids.shape[1]
    filler = torch.arange(topk, dtype=topk_ids.dtype, device=topk_ids.device).expand(rows - n, topk)
    mask = pad(torch.ones(n, dtype=torch.int8, device=x.device), (0, rows - n))
    return CallRows(x, torch.cat([topk_ids, filler]), topk_weights, mask)
