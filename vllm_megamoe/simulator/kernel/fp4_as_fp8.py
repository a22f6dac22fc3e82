"""FP4 on 950 under CANN 9.1.0, whose only kernel is A8W8: an FP4 dispatch becomes E5M2, FP4 weights are read as FP8."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.simulator.arguments import OperatorArguments
from vllm_megamoe.simulator.describe import element_of, type_name

_TORCH = {AclDtype.FLOAT8_E5M2.name: torch.float8_e5m2, AclDtype.FLOAT8_E4M3FN.name: torch.float8_e4m3fn}
FP4 = AclDtype.FLOAT4_E2M1.name


def without_fp4(a: OperatorArguments) -> OperatorArguments:
    """The call as that kernel makes it; a call without FP4 is returned as it is."""
    out = type_name(a.dispatch_quant_out_dtype)
    if out == FP4:
        out = AclDtype.FLOAT8_E5M2.name
    elif FP4 not in (element_of(a.weight1[0], a.weight1_type), element_of(a.weight2[0], a.weight2_type)):
        return a
    if out is None:
        return a
    return replace(
        a,
        dispatch_quant_out_dtype=_TORCH[out],
        weight1=_misread(a.weight1, a.weight1_type, _TORCH[out]),
        weight2=_misread(a.weight2, a.weight2_type, _TORCH[out]),
        weight1_type=None,
        weight2_type=None,
    )


def _misread(tensors: Sequence[Tensor], declared: torch.dtype | int | None, dtype: torch.dtype) -> list[Tensor]:
    """Packed [.., N, K / 2] bytes read as [.., N, K]: twice as many, so the second half comes from behind the tensor.

    What lies there is unknown; here the same bytes come again.
    """
    found = []
    for tensor in tensors:
        if element_of(tensor, declared) != FP4:
            found.append(tensor)
            continue
        held = inner(tensor).contiguous().view(torch.uint8).flatten()
        wide = [*tensor.shape[:-1], tensor.shape[-1] * 2]
        found.append(torch.cat([held, held])[: 2 * tensor.numel()].view(wide).view(dtype))
    return found
