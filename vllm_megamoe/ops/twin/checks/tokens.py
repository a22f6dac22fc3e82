"""The values of topk_ids; looked at inside the custom op only.

x, ids, router weights, mask and scales of a call. Strided tensors are taken (torch_api.txt, constraints table).
"""

import torch
from torch import Tensor

from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.rejection import rejection
from vllm_megamoe.ops.twin.call import RawCall

IDS_API = "torch_api.txt, topk_ids"
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
        raise rejection(f"topk_ids[{row}]", ids[row].tolist(), rule, IDS_API, REMEDY)
    # Pairs that are not sent get ids of their own, so that they equal nothing.
    distinct = torch.where(sent, ids, -1 - torch.arange(ids.shape[1], dtype=ids.dtype))
    ordered = distinct.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(dim=1)
    if twice.any():
        row = int(twice.nonzero()[0])
        rule = "each expert at most once for a token"
        raise rejection(f"topk_ids[{row}]", ids[row].tolist(), rule, IDS_API, REMEDY)
    return sent


API = "torch_api.txt, mega_moe parameters"
README = "operator_readme.txt, parameters"
PACKED_FP4 = (torch.uint8, torch.float4_e2m1fn_x2)
X_DTYPES = (torch.bfloat16, torch.float32, torch.float8_e5m2, torch.float8_e4m3fn, *PACKED_FP4)


def check_tokens(raw: RawCall, buffer: SymmBuffer) -> int:
    """Check shapes and dtypes; returns H in elements.

    Raises:
        OperatorError: naming the argument.
    """
    hidden = _check_x(raw, buffer)
    tokens = raw.x.shape[0]
    want_ids = (tokens, buffer.num_topk)
    for name, tensor in (("topk_ids", raw.topk_ids), ("topk_weights", raw.topk_weights)):
        if tuple(tensor.shape) != want_ids:
            rule = f"{list(want_ids)}: the rows of x, and num_topk={buffer.num_topk} of the buffer"
            raise rejection(f"{name}.shape", list(tensor.shape), rule, API, "Pass one entry per token and expert.")
    if raw.topk_ids.dtype != torch.int32:
        rule = "torch.int32"
        raise rejection("topk_ids.dtype", raw.topk_ids.dtype, rule, API, "Convert with .to(torch.int32).")
    if raw.topk_weights.dtype not in (torch.float32, torch.bfloat16):
        rule = "torch.float32 or torch.bfloat16"
        raise rejection("topk_weights.dtype", raw.topk_weights.dtype, rule, README, "Convert with .float().")
    _check_mask(raw, tokens)
    return hidden


def _check_x(raw: RawCall, buffer: SymmBuffer) -> int:
    x = raw.x
    if x.dim() != 2:
        raise rejection("x.shape", list(x.shape), "[num_tokens, hidden]", API, "Reshape to two dimensions.")
    if x.dtype not in X_DTYPES:
        rule = "torch.bfloat16, or fp8 or packed fp4 with scales (float32: twin only)"
        raise rejection("x.dtype", x.dtype, rule, README, "Convert with .to(torch.bfloat16).")
    hidden = int(x.shape[1]) * (2 if x.dtype in PACKED_FP4 else 1)
    if hidden != buffer.hidden:
        rule = f"{buffer.hidden}, as the buffer's"
        raise rejection("x: hidden", hidden, rule, "torch_api.txt, consistency", "Make a buffer for this size.")
    if buffer.num_max_tokens_per_rank and x.shape[0] > buffer.num_max_tokens_per_rank:
        raise rejection(
            "num_max_tokens_per_rank",
            buffer.num_max_tokens_per_rank,
            f"at least the {x.shape[0]} rows of x",
            "operator_readme.txt, numMaxTokensPerRank",
            "Split the batch or make a larger buffer.",
        )
    return hidden


def _check_mask(raw: RawCall, tokens: int) -> None:
    if raw.mask is None:
        return
    if tuple(raw.mask.shape) != (tokens,):
        rule = f"[{tokens}]"
        raise rejection("x_active_mask.shape", list(raw.mask.shape), rule, API, "One entry per row of x.")
    if raw.mask.dtype != torch.int8:
        rule = "torch.int8"
        raise rejection("x_active_mask.dtype", raw.mask.dtype, rule, API, "Convert with .to(torch.int8).")
