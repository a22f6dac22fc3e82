"""Operands of 950: K last, [2I, H] and [H, I]; FP8 or packed FP4 codes, E8M0 scales in pairs."""

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.cast import format_cast
from vllm_megamoe.layout.scales import pair_scales, unpair_scales
from vllm_megamoe.numerics.minifloat import TORCH_DTYPE, Elem
from vllm_megamoe.numerics.mx import GROUP


def mx_weight(codes: Tensor, elem: Elem, fmt: AclFormat) -> Tensor:
    """uint8 codes [N, K], FP4 packed [N, K/2] -> the same in the format that the operator wants to see.

    FP8 gets torch's float8 dtype, which tells the operator the type; FP4 stays uint8 and needs weight type 296. FP4 in
    FRACTAL_NZ_C0_32 (32 nibbles a block) is FRACTAL_NZ_C0_16 for its bytes.
    """
    if elem != "e2m1":
        return format_cast(codes.contiguous().view(TORCH_DTYPE[elem]), fmt)
    return format_cast(codes.contiguous(), _for_bytes(fmt))


def _for_bytes(fmt: AclFormat) -> AclFormat:
    """The inverse of `acl.format_for_packed`."""
    return AclFormat.FRACTAL_NZ_C0_16 if fmt == AclFormat.FRACTAL_NZ_C0_32 else fmt


def mx_codes(weight: Tensor) -> Tensor:
    """The inverse: formatted or plain, float8 or uint8 -> plain uint8 of the same shape."""
    return format_cast(weight, AclFormat.ND).view(torch.uint8)


def elem_of(weight: Tensor) -> Elem:
    """The element type that a weight's dtype tells; uint8 is packed E2M1.

    Raises:
        LayoutError: any other dtype.
    """
    if weight.dtype in (torch.uint8, torch.float4_e2m1fn_x2):
        return "e2m1"
    for elem, dtype in TORCH_DTYPE.items():
        if weight.dtype == dtype:
            return elem
    raise LayoutError(f"a weight of {weight.dtype} is no MX weight; wanted float8_e4m3fn, float8_e5m2 or packed uint8.")


def mx_scale(scales: Tensor) -> Tensor:
    """uint8 E8M0 [N, ceil(K/32)] -> float8_e8m0fnu [N, ceil(K/64), 2]; a view changes no byte, a copy_ would."""
    return pair_scales(scales).contiguous().view(torch.float8_e8m0fnu)


def mx_scale_bytes(pairs: Tensor | None, k: int, where: str) -> Tensor:
    """The inverse: -> uint8 [N, ceil(k/32)]; raises LayoutError where the scales are missing."""
    if pairs is None:
        raise LayoutError(f"{where} is missing; MX weights come with E8M0 scales [N, ceil(K/64), 2].")
    return unpair_scales(pairs.view(torch.uint8), -(-k // GROUP))
