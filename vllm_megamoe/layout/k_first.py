"""Operands of A2/A3: K first, [H, 2I] and [I, H]; BF16 in ND, integers in FRACTAL_NZ with 64-bit channel scales."""

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.cast import format_cast
from vllm_megamoe.layout.nibbles import pack_int4, unpack_int4
from vllm_megamoe.layout.scales import from_uint64, to_uint64
from vllm_megamoe.numerics.switches import Nibbles


def dense_weight(w: Tensor) -> Tensor:
    """[N, K] -> contiguous [K, N], ND: the operator refuses BF16 in FRACTAL_NZ (tiling arch22)."""
    return w.t().contiguous()


def int8_weight(q: Tensor) -> Tensor:
    """int8 [N, K] -> int8 [K, N] in FRACTAL_NZ."""
    return format_cast(q.t().contiguous(), AclFormat.FRACTAL_NZ)


def int4_weight(q: Tensor, nibbles: Nibbles = "twos_complement") -> Tensor:
    """int8 values -8..7 [N, K] -> int8 [K, N/2] in FRACTAL_NZ, low nibble = even output channel.

    `.view(torch.int32)` of it is the other carrier, [K, N/8].
    """
    return format_cast(pack_int4(q.t().contiguous(), nibbles == "offset_binary"), AclFormat.FRACTAL_NZ)


def int4_values(weight: Tensor, nibbles: Nibbles = "twos_complement") -> Tensor:
    """The inverse, of either carrier and format: int8 [K, N/2] or int32 [K, N/8] -> int8 values [N, K]."""
    plain = format_cast(weight, AclFormat.ND).view(torch.int8)
    return unpack_int4(plain, nibbles == "offset_binary").t().contiguous()


def weight_values(weight: Tensor) -> Tensor:
    """The inverse of `dense_weight` and `int8_weight`: [K, N], formatted or plain -> [N, K]."""
    return format_cast(weight, AclFormat.ND).t().contiguous()


def int4_bias(q: Tensor, scale: Tensor) -> Tensor:
    """8 * sum over k of q[n, k], times scale[n] -> float32 [N]: what the split q = 16 high + low + 8 leaves out.

    Source: operator_readme.txt, A8W4-INT, step 1. The sum is a whole number below 2^24, exact in float32.
    """
    return 8.0 * q.sum(dim=1, dtype=torch.int32).float() * scale


def channel_scale(scale: Tensor) -> Tensor:
    """float32 [N] -> int64 [N] that carries the uint64 words."""
    return to_uint64(scale)


def channel_scale_values(words: Tensor | None, where: str) -> Tensor:
    """The inverse; raises LayoutError where the scales are missing."""
    if words is None:
        raise LayoutError(f"{where} is missing; integer weights come with one 64-bit scale word per output channel.")
    return from_uint64(words)
