"""The INT8 operators with which vllm-ascend runs a shared MLP beside the routed experts, as plain torch.

Rows and weights have one factor a row; the product of both factors restores a sum of int32 products (torch_npu,
npu_dynamic_quant, npu_quant_matmul; vllm-ascend's npu_dequant_swiglu_quant).
"""

from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.layout.cast import host_format_cast

LARGEST = 127


def npu_dynamic_quant(x: Tensor, *, dst_type: Any = torch.int8) -> tuple[Tensor, Tensor]:
    """Rows [T, K] -> int8 [T, K] and float32 [T]: the largest of a row is 127.

    Raises:
        NotImplementedError: another type than int8.
    """
    if dst_type is not torch.int8:
        raise NotImplementedError(f"npu_dynamic_quant to {dst_type} is not simulated")
    scale = x.float().abs().amax(dim=-1) / LARGEST
    return (x.float() / scale[:, None]).nan_to_num(0).round().to(torch.int8), scale


def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """int8 [T, K] times int8 [K, N], which may be in blocks; an int32 output has no factors yet."""
    plain = host_format_cast(x2, AclFormat.ND)
    total = x1.double() @ plain.double()  # exact: sums stay below 2^53
    if output_dtype == torch.int32:
        return total.to(torch.int32)
    out = total.float() * scale.float()
    if pertoken_scale is not None:
        out = out * pertoken_scale[:, None]
    return (out if bias is None else out + bias.float()).to(output_dtype)


_SCHEMA = (
    "npu_dequant_swiglu_quant(Tensor x, Tensor? weight_scale=None, Tensor? activation_scale=None, Tensor? bias=None, "
    "Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=False, "
    "int quant_mode=0, int swiglu_mode=0, float clamp_limit=0., float glu_alpha=1., float glu_bias=0.) "
    "-> (Tensor y, Tensor scale)"
)


def npu_dequant_swiglu_quant(
    x: Tensor,
    weight_scale: Tensor,
    activation_scale: Tensor,
    *others: Any,
    activate_left: bool = False,
    clamp_limit: float = 0.0,
    glu_alpha: float = 1.0,
    glu_bias: float = 0.0,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """int32 sums [T, 2N] -> silu(gate) * up, gate the left half, as int8 rows with their factors."""
    del others, more
    values = x.float() * weight_scale.float() * activation_scale[:, None]
    gate, up = values.chunk(2, dim=-1) if activate_left else reversed(values.chunk(2, dim=-1))
    if clamp_limit > 0:
        gate, up = gate.clamp(max=clamp_limit), up.clamp(-clamp_limit, clamp_limit)
    return npu_dynamic_quant(gate * (glu_alpha * gate).sigmoid() * (up + glu_bias))


def define(library: Any) -> None:
    """Put vllm-ascend's own operator into its namespace."""
    library.define(_SCHEMA)
    library.impl("npu_dequant_swiglu_quant", npu_dequant_swiglu_quant, "CPU")
