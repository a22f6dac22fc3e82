"""What a rank does in a test: call the operator and hand back plain arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case
from torch import distributed as dist

from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings


@dataclass(frozen=True, slots=True)
class Got:
    """Results of one rank: y as float32 numbers, its dtype's name, counts, and topk_ids after the call."""

    y: NDArray[np.float32]
    dtype: str
    expert_token_nums: NDArray[np.int32]
    topk_ids: NDArray[np.int32]


def as_got(y: torch.Tensor, counts: torch.Tensor, ids: torch.Tensor) -> Got:
    """Tensors to arrays."""
    return Got(y.float().numpy(), str(y.dtype), counts.numpy(), ids.numpy())


def numerics_of(case: Case) -> Numerics:
    """The switches that the case names."""
    switches: dict[str, Any] = {"rule": case.rule}
    return Numerics(**switches, scale_bits=case.scale_bits, fp16_overflow=case.fp16_overflow)  # type: ignore[arg-type]


def run_rank(case: Case, r: int, form: Form) -> Got:
    """One call as rank r; the group is the default one, or none for a single rank."""
    group = dist.group.WORLD if len(case.ranks) > 1 else None
    with settings(profile="none", numerics=numerics_of(case), timeout_s=30):
        buffer = get_symm_buffer_for_mega_moe(group, **buffer_arguments(case))
        arguments = call_arguments(case, r, form)
        y, counts = mega_moe(**arguments, sym_buffer=buffer)
    result = as_got(y, counts, arguments["topk_ids"])
    buffer.destroy()
    return result
