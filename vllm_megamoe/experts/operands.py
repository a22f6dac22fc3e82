"""Operands of A2/A3: K first, [H, 2I] and [I, H]; BF16 in ND, integers in FRACTAL_NZ with 64-bit channel scales.

Operands of 950: K last, [2I, H] and [H, I]; FP8 or packed FP4 codes, E8M0 scales in pairs.

Canonical experts <-> operands of a use case, one expert at a time (layouts: docs/layouts.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.layout.cast import format_cast
from vllm_megamoe.layout.packing import from_uint64, pack_int4, pair_scales, to_uint64, unpack_int4, unpair_scales
from vllm_megamoe.numerics.mx import GROUP, TORCH_DTYPE, Elem
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


def dense_weight(w: Tensor) -> Tensor:
    """[N, K] -> contiguous [K, N], ND: the operator rejects BF16 in FRACTAL_NZ (tiling arch22)."""
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
    raise LayoutError(
        f"a weight of {weight.dtype} is no MX weight; expected float8_e4m3fn, float8_e5m2 or packed uint8."
    )


def mx_scale(scales: Tensor) -> Tensor:
    """uint8 E8M0 [N, ceil(K/32)] -> float8_e8m0fnu [N, ceil(K/64), 2]; a view changes no byte, a copy_ would."""
    return pair_scales(scales).contiguous().view(torch.float8_e8m0fnu)


def mx_scale_bytes(pairs: Tensor | None, k: int, where: str) -> Tensor:
    """The inverse: -> uint8 [N, ceil(k/32)]; raises LayoutError where the scales are missing."""
    if pairs is None:
        raise LayoutError(f"{where} is missing; MX weights come with E8M0 scales [N, ceil(K/64), 2].")
    return unpair_scales(pairs.view(torch.uint8), -(-k // GROUP))


@dataclass(frozen=True, slots=True)
class ExpertOperands:
    """What one expert contributes to the operator's lists; None where its use case has none.

    Attributes:
        l1, l2: weights of the two GEMMs.
        l1_sf, l2_sf: their scales.
        l1_bias, l2_bias: compensation of the INT4 split, float32 [2I] and [H].
    """

    l1: Tensor
    l2: Tensor
    l1_sf: Tensor | None = None
    l2_sf: Tensor | None = None
    l1_bias: Tensor | None = None
    l2_bias: Tensor | None = None


def to_operands(experts: Experts, use_case: UseCase, nibbles: Nibbles = "twos_complement") -> list[ExpertOperands]:
    """One ExpertOperands for each expert, in the use case's formats; FP8 weights keep their element type.

    Raises:
        LayoutError: these experts are not of the use case's kind.
    """
    _check_kind(experts, use_case)
    convert = range(experts.num_experts)
    if isinstance(experts, DenseExperts):
        return [_dense(experts, e) for e in convert]
    if isinstance(experts, IntExperts):
        return [_ints(experts, e, nibbles) for e in convert]
    facts = USE_CASES[use_case]
    formats = AclFormat(facts.format1), AclFormat(facts.format2)
    return [_mx(experts, e, formats) for e in convert]


def from_operands(
    operands: Sequence[ExpertOperands], use_case: UseCase, nibbles: Nibbles = "twos_complement"
) -> Experts:
    """The inverse, from any format that the use case may come in.

    Raises:
        LayoutError: the list is empty, or an operand is missing or of another dtype.
    """
    if not operands:
        raise LayoutError("no operands; expected one entry for each expert.")
    facts = USE_CASES[use_case]
    if facts.family == "dense":
        pairs = [(weight_values(o.l1), weight_values(o.l2)) for o in operands]
        return DenseExperts(*(torch.stack(column) for column in zip(*pairs, strict=True)))
    if facts.family == "int":
        ints = [_int_values(o, facts.weight_bits, nibbles) for o in operands]
        w13, s13, w2, s2 = (torch.stack(column) for column in zip(*ints, strict=True))
        return IntExperts(w13, s13, w2, s2, bits=4 if facts.weight_bits == 4 else 8)
    mx = [_mx_values(o) for o in operands]
    w13, s13, w2, s2 = (torch.stack(column) for column in zip(*mx, strict=True))
    return MxExperts(w13, s13, w2, s2, elem_of(operands[0].l1))


def _check_kind(experts: Experts, use_case: UseCase) -> None:
    facts = USE_CASES[use_case]
    if isinstance(experts, DenseExperts):
        found = ("dense", 16)
    elif isinstance(experts, IntExperts):
        found = ("int", experts.bits)
    else:
        found = ("mx", 4 if experts.elem == "e2m1" else 8)
    if found != (facts.family, facts.weight_bits):
        raise LayoutError(
            f"{use_case} takes {facts.family} experts of {facts.weight_bits} bits; got {found[0]} of {found[1]}. "
            "Convert the checkpoint's experts first, or choose the use case that fits them."
        )


def _dense(experts: DenseExperts, e: int) -> ExpertOperands:
    return ExpertOperands(dense_weight(experts.w13[e]), dense_weight(experts.w2[e]))


def _ints(experts: IntExperts, e: int, nibbles: Nibbles) -> ExpertOperands:
    w13, w2 = experts.w13[e], experts.w2[e]
    s13, s2 = experts.w13_scale[e], experts.w2_scale[e]
    scales = channel_scale(s13), channel_scale(s2)
    if experts.bits == 8:
        return ExpertOperands(int8_weight(w13), int8_weight(w2), *scales)
    return ExpertOperands(
        int4_weight(w13, nibbles),
        int4_weight(w2, nibbles),
        *scales,
        int4_bias(w13, s13),
        int4_bias(w2, s2),
    )


def _int_values(o: ExpertOperands, bits: int, nibbles: Nibbles) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if bits == 4:
        w13, w2 = int4_values(o.l1, nibbles), int4_values(o.l2, nibbles)
    else:
        w13, w2 = weight_values(o.l1), weight_values(o.l2)
    s13 = channel_scale_values(o.l1_sf, "l1_sf")
    return w13, s13, w2, channel_scale_values(o.l2_sf, "l2_sf")


def _mx(experts: MxExperts, e: int, formats: tuple[AclFormat, AclFormat]) -> ExpertOperands:
    return ExpertOperands(
        mx_weight(experts.w13[e], experts.elem, formats[0]),
        mx_weight(experts.w2[e], experts.elem, formats[1]),
        mx_scale(experts.w13_scale[e]),
        mx_scale(experts.w2_scale[e]),
    )


def _mx_values(o: ExpertOperands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden, intermediate = o.l2.shape[0], o.l1.shape[0] // 2
    s13 = mx_scale_bytes(o.l1_sf, hidden, "l1_sf")
    s2 = mx_scale_bytes(o.l2_sf, intermediate, "l2_sf")
    return mx_codes(o.l1), s13, mx_codes(o.l2), s2
