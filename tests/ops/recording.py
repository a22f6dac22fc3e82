"""The operator as the documents' examples import it, with each call's inputs and results kept for the test."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe import ops
from vllm_megamoe.layout import AclFormat
from vllm_megamoe.layout import format_cast as real_format_cast

FOLDER_VARIABLE = "MEGAMOE_EXAMPLE_RECORDS"

_before_cast: list[Tensor] = []

get_symm_buffer_for_mega_moe = ops.get_symm_buffer_for_mega_moe


def format_cast(tensor: Tensor, fmt: AclFormat) -> Tensor:
    """As in the package; the tensor in row order is kept."""
    _before_cast.append(tensor)
    return real_format_cast(tensor, fmt)


def mega_moe(*args: Any, sym_buffer: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    """As in the package; arguments and results are saved in a file for each rank."""
    names = ("x", "topk_ids", "topk_weights", "l1_weights", "l2_weights")
    given = dict(zip(names, args, strict=False)) | options
    buffer = sym_buffer if sym_buffer is not None else args[5]
    y, counts = ops.mega_moe(**given, sym_buffer=buffer)
    if _before_cast:
        half = len(_before_cast) // 2
        given["l1_weights"], given["l2_weights"] = _before_cast[:half], _before_cast[half:]
        _before_cast.clear()
    target = Path(os.environ[FOLDER_VARIABLE]) / f"rank{buffer.rank_id}.pt"
    torch.save(given | {"y": y, "counts": counts}, target)
    return y, counts
