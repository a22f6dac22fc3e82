"""The values of topk_ids; looked at inside the custom op only."""

import torch
from torch import Tensor

from vllm_megamoe.ops.twin.call import RawCall
from vllm_megamoe.ops.twin.refusal import refusal

API = "torch_api.txt, topk_ids"
REMEDY = "Pass what the router chose, and -1 where no expert is meant."


def check_ids(raw: RawCall, num_experts: int) -> Tensor:
    """The pairs that are sent: bool [T, K], without -1 and without masked rows, whose ids may be anything.

    Raises:
        OperatorError: an id out of range, or twice in a row of ids; the row is named.
    """
    ids = raw.topk_ids
    sent = ids != -1
    if raw.mask is not None:
        sent &= (raw.mask != 0)[:, None]
    outside = sent & ((ids < 0) | (ids >= num_experts))
    if outside.any():
        row = int(outside.any(dim=1).nonzero()[0])
        rule = f"in [0, {num_experts}), or -1 for a pair that is not sent"
        raise refusal(f"topk_ids[{row}]", ids[row].tolist(), rule, API, REMEDY)
    # Pairs that are not sent get ids of their own, so that they equal nothing.
    distinct = torch.where(sent, ids, -1 - torch.arange(ids.shape[1], dtype=ids.dtype))
    ordered = distinct.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1)
    if twice.any():
        row = int(twice.nonzero()[0])
        rule = "each expert at most once for a token"
        raise refusal(f"topk_ids[{row}]", ids[row].tolist(), rule, API, REMEDY)
    return sent
