"""Operands of one expert: its weights, scales and biases as the operator reads them, and the way back.

Each use case has two GEMMs, [N, K] with N outputs and K inputs in canonical experts: N = 2I, K = H, then N = H, K = I.

    kind    product  weight                                             scale                        bias
    dense   A2, A3   [K, N], ND                                         -                            -
    int8    A2, A3   int8 [K, N], FRACTAL_NZ                            int64 [N], float32 bits      -
    int4    A2, A3   int8 [K, N/2], FRACTAL_NZ, low nibble = even n     int64 [N], float32 bits      float32 [N]
    fp8     950      float8 [N, K], ND                                  e8m0 [N, ceil(K/64), 2]      -
    fp4     950      uint8 [N, K/2], C0_32 or NZ, low nibble = even k   e8m0 [N, ceil(K/64), 2]      -

A2 and A3 take K first, the transpose of what checkpoints hold, because their weights are the right side of x @ w; 950
takes K last. BF16 stays ND, because the tiling rejects it in FRACTAL_NZ (tiling arch22). Formats of the use cases are
in `profiles.use_cases`, the bytes in docs/layouts.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.kinds import kind_of, kinds_of
from vllm_megamoe.layout.cast import format_cast
from vllm_megamoe.layout.packing import from_uint64, pack_int4, pair_scales, to_uint64, unpack_int4, unpair_scales
from vllm_megamoe.numerics.mx import GROUP, TORCH_DTYPE, Elem
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase


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
        LayoutError: these experts are not of the use case's kind; `convert` brings those that can be converted.
    """
    if kind_of(experts) not in kinds_of(use_case):
        raise LayoutError(
            f"{use_case} takes {' or '.join(kinds_of(use_case))} experts; got {kind_of(experts)} experts. "
            "Convert them first (experts.convert.convert), or choose the use case that fits them."
        )
    match experts:
        case DenseExperts():
            return [_dense(experts, e) for e in range(experts.num_experts)]
        case IntExperts():
            return [_ints(experts, e, nibbles) for e in range(experts.num_experts)]
        case MxExperts():
            facts = USE_CASES[use_case]
            formats = AclFormat(facts.format1), AclFormat(facts.format2)
            return [_mx(experts, e, formats) for e in range(experts.num_experts)]


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
        pairs = [(_k_last(o.l1), _k_last(o.l2)) for o in operands]
        return DenseExperts(*(torch.stack(column) for column in zip(*pairs, strict=True)))
    if facts.family == "int":
        four = facts.weight_bits == 4
        ints = [_int_values(o, four, nibbles) for o in operands]
        w13, s13, w2, s2 = (torch.stack(column) for column in zip(*ints, strict=True))
        return IntExperts(w13, s13, w2, s2, bits=4 if four else 8)
    mx = [_mx_values(o) for o in operands]
    w13, s13, w2, s2 = (torch.stack(column) for column in zip(*mx, strict=True))
    return MxExperts(w13, s13, w2, s2, _elem_of(operands[0].l1))


# K first: A2 and A3.


def _k_first(w: Tensor) -> Tensor:
    """[N, K] -> contiguous [K, N]."""
    return w.t().contiguous()


def _k_last(weight: Tensor) -> Tensor:
    """The inverse: [K, N], formatted or plain -> plain [N, K]."""
    return format_cast(weight, AclFormat.ND).t().contiguous()


def _dense(experts: DenseExperts, e: int) -> ExpertOperands:
    return ExpertOperands(_k_first(experts.w13[e]), _k_first(experts.w2[e]))


def _ints(experts: IntExperts, e: int, nibbles: Nibbles) -> ExpertOperands:
    w13, w2, s13, s2 = experts.w13[e], experts.w2[e], experts.w13_scale[e], experts.w2_scale[e]
    if experts.bits == 8:
        codes = _k_first(w13), _k_first(w2)
        biases = None, None
    else:
        codes = _packed(w13, nibbles), _packed(w2, nibbles)
        biases = _int4_bias(w13, s13), _int4_bias(w2, s2)
    l1, l2 = (format_cast(matrix, AclFormat.FRACTAL_NZ) for matrix in codes)
    return ExpertOperands(l1, l2, to_uint64(s13), to_uint64(s2), *biases)


def _packed(q: Tensor, nibbles: Nibbles) -> Tensor:
    """int8 values -8..7 [N, K] -> int8 [K, N/2]; `.view(torch.int32)` of it is the other carrier, [K, N/8]."""
    return pack_int4(_k_first(q), nibbles == "offset_binary")


def _int4_bias(q: Tensor, scale: Tensor) -> Tensor:
    """8 * sum over k of q[n, k], times scale[n] -> float32 [N]: what the split q = 16 high + low + 8 leaves out.

    Source: operator_readme.txt, A8W4-INT, step 1. The sum is a whole number below 2^24, exact in float32.
    """
    return 8.0 * q.sum(dim=1, dtype=torch.int32).float() * scale


def _int_values(o: ExpertOperands, four: bool, nibbles: Nibbles) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def values(weight: Tensor) -> Tensor:
        """int8 [K, N]; INT4 in either carrier, int8 [K, N/2] or int32 [K, N/8] -> int8 [N, K]."""
        if not four:
            return _k_last(weight)
        plain = format_cast(weight, AclFormat.ND).view(torch.int8)
        return unpack_int4(plain, nibbles == "offset_binary").t().contiguous()

    return values(o.l1), from_uint64(_there(o.l1_sf, "l1_sf")), values(o.l2), from_uint64(_there(o.l2_sf, "l2_sf"))


# K last: 950.


def _mx(experts: MxExperts, e: int, formats: tuple[AclFormat, AclFormat]) -> ExpertOperands:
    def weight(codes: Tensor, fmt: AclFormat) -> Tensor:
        """FP8 gets torch's float8 dtype, which tells the operator the type; FP4 stays uint8 and needs a weight type."""
        if experts.elem == "e2m1":
            return format_cast(codes.contiguous(), _for_bytes(fmt))
        return format_cast(codes.contiguous().view(TORCH_DTYPE[experts.elem]), fmt)

    def scale(scales: Tensor) -> Tensor:
        # A view changes no byte, a copy_ between uint8 and e8m0 would.
        return pair_scales(scales).contiguous().view(torch.float8_e8m0fnu)

    return ExpertOperands(
        weight(experts.w13[e], formats[0]),
        weight(experts.w2[e], formats[1]),
        scale(experts.w13_scale[e]),
        scale(experts.w2_scale[e]),
    )


def _for_bytes(fmt: AclFormat) -> AclFormat:
    """The inverse of `acl.format_for_packed`: blocks of 32 nibbles are blocks of 16 bytes."""
    return AclFormat.FRACTAL_NZ_C0_16 if fmt == AclFormat.FRACTAL_NZ_C0_32 else fmt


def _mx_values(o: ExpertOperands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def codes(weight: Tensor) -> Tensor:
        """Formatted or plain, float8 or uint8 -> plain uint8 of the same shape."""
        return format_cast(weight, AclFormat.ND).view(torch.uint8)

    hidden, intermediate = o.l2.shape[0], o.l1.shape[0] // 2
    s13 = unpair_scales(_there(o.l1_sf, "l1_sf").view(torch.uint8), -(-hidden // GROUP))
    s2 = unpair_scales(_there(o.l2_sf, "l2_sf").view(torch.uint8), -(-intermediate // GROUP))
    return codes(o.l1), s13, codes(o.l2), s2


def _elem_of(weight: Tensor) -> Elem:
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
        f"a weight of {weight.dtype} is no MX weight; expected float8_e4m3fn, float8_e5m2 or packed uint8. "
        "Name the use case that the operands were made for."
    )


def _there(scales: Tensor | None, where: str) -> Tensor:
    if scales is None:
        raise LayoutError(
            f"{where} is missing; expected int64 [N] beside integer weights, e8m0 [N, ceil(K/64), 2] beside MX weights."
        )
    return scales
