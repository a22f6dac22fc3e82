"""Operands: weights, scales and biases as the operator reads them, of one expert and of a layer, and the way back.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, Kind, MxExperts
from vllm_megamoe.experts.packed_int4 import PackedInt4
from vllm_megamoe.layout.cast import format_cast, format_into, on_npu
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.layout.packing import (
    OFFSET_BINARY,
    from_uint64,
    pack_int4_rows,
    pair_scales,
    sum_int4_rows,
    to_uint64,
    unpack_int4,
    unpair_scales,
)
from vllm_megamoe.numerics.mx import GROUP, TORCH_DTYPE, Elem
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

Weights = list[Tensor] | Tensor
"""A matrix for each expert, or one stack of all."""

# By family and bits of a use case; the first is what other experts are converted to.
_KINDS: dict[tuple[str, int], tuple[Kind, ...]] = {
    ("dense", 16): ("dense",),
    ("int", 8): ("int8",),
    ("int", 4): ("int4",),
    ("mx", 8): ("e4m3", "e5m2"),
    ("mx", 4): ("e2m1",),
}
KINDS: dict[UseCase, tuple[Kind, ...]] = {u: _KINDS[row.family, row.weight_bits] for u, row in USE_CASES.items()}
"""The kinds of experts that a use case computes with."""


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


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """The experts of a layer as a call passes them, and what the buffer and the call must be told about them.

    Attributes:
        l1, l2: weights of the two GEMMs.
        l1_sf, l2_sf: their scales, None for BF16.
        l1_bias, l2_bias: compensation of the INT4 split, None for other weights.
        use_case: what they are operands of.
        hidden, intermediate_hidden: H and I, padding included.
        dispatch_quant_mode, dispatch_quant_out_dtype: what the buffer must be made with.
        weight_type: what the call must say of both weights, None where their dtype says it.
    """

    l1: Weights
    l2: Weights
    l1_sf: Weights | None
    l2_sf: Weights | None
    l1_bias: Weights | None
    l2_bias: Weights | None
    use_case: UseCase
    hidden: int
    intermediate_hidden: int
    dispatch_quant_mode: int
    dispatch_quant_out_dtype: int | None
    weight_type: int | None

    def buffer_arguments(self) -> dict[str, Any]:
        """What `get_symm_buffer_for_mega_moe` has to be told of these weights, as its keyword arguments."""
        return {
            "hidden": self.hidden,
            "intermediate_hidden": self.intermediate_hidden,
            "dispatch_quant_mode": self.dispatch_quant_mode,
            "dispatch_quant_out_dtype": self.dispatch_quant_out_dtype,
        }

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `mega_moe`, weight types included; those that do not apply are None, its default."""
        return {
            "l1_weights": self.l1,
            "l2_weights": self.l2,
            "l1_weights_sf": self.l1_sf,
            "l2_weights_sf": self.l2_sf,
            "l1_bias": self.l1_bias,
            "l2_bias": self.l2_bias,
            "weight1_type": self.weight_type,
            "weight2_type": self.weight_type,
        }

    def shared_arguments(self) -> dict[str, Any]:
        """The same where these are the shared experts of a call, which take no bias (operator_readme.txt, sharedBias1).

        So the operator has no INT4 shared experts, and rejects them.
        """
        return {f"shared_{name}": value for name, value in self.arguments().items() if not name.endswith("_bias")}

    @property
    def nbytes(self) -> int:
        """Bytes that the operands hold, the blocks' padding included."""
        held = [getattr(self, field.name) for field in fields(ExpertOperands)]
        lists = [[weights] if isinstance(weights, Tensor) else weights for weights in held if weights is not None]
        return sum(inner(tensor).nbytes for tensors in lists for tensor in tensors)


def to_operands(experts: Experts, use_case: UseCase, nibbles: Nibbles = "twos_complement") -> list[ExpertOperands]:
    """One ExpertOperands for each expert, in the use case's formats; FP8 weights keep their element type.

    Raises:
        LayoutError: these experts are not of the use case's kind; `convert` brings those that can be converted.
    """
    facts = USE_CASES[use_case]
    fp4 = (facts.family, facts.weight_bits) == ("mx", 4)
    format1, format2 = (_for_bytes(fmt) if fp4 else fmt for fmt in (facts.format1, facts.format2))
    return [
        replace(plain, l1=_laid_out(plain.l1, format1), l2=_laid_out(plain.l2, format2))
        for plain in _plain(experts, use_case, nibbles)
    ]


def put_operands(experts: Experts, use_case: UseCase, place: ExpertOperands) -> None:
    """The same of one expert, into the memory of operands like it, on the CPU: nothing lies between the two.

    Raises:
        LayoutError: as `to_operands`; the place is of another use case or size.
    """
    (plain,) = _plain(experts, use_case, "twos_complement")
    for name in (field.name for field in fields(ExpertOperands)):
        if getattr(plain, name) is not None:
            format_into(getattr(place, name), getattr(plain, name))


def _plain(experts: Experts, use_case: UseCase, nibbles: Nibbles) -> Iterator[ExpertOperands]:
    """Operands whose weights are not in their formats yet, and may be views of the experts."""
    facts = USE_CASES[use_case]
    every = range(experts.num_experts)
    match experts:
        case DenseExperts() if facts.family == "dense":
            return (ExpertOperands(experts.w13[e].t(), experts.w2[e].t()) for e in every)
        case IntExperts() if facts.family == "int" and experts.bits == facts.weight_bits:
            return (_ints(experts, e, nibbles) for e in every)
        case MxExperts() if experts.elem in KINDS[use_case]:
            return (_mx(experts, e) for e in every)
    raise LayoutError(
        f"{use_case} takes {' or '.join(KINDS[use_case])} experts; got {experts.kind} experts. "
        "Convert them first (experts.convert.convert), or choose the use case that fits them."
    )


def _laid_out(matrix: Tensor, fmt: AclFormat) -> Tensor:
    if fmt is AclFormat.ND:
        return matrix.contiguous()
    # Blocks are made of a transposed matrix in one step, but only here: a device casts memory in row order.
    return format_cast(matrix.contiguous() if on_npu(matrix.device) else matrix, fmt)


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


def _k_last(weight: Tensor) -> Tensor:
    """[K, N], formatted or plain -> plain [N, K]."""
    return format_cast(weight, AclFormat.ND).t().contiguous()


def _ints(experts: IntExperts, e: int, nibbles: Nibbles) -> ExpertOperands:
    s13, s2 = experts.w13_scale[e], experts.w2_scale[e]
    scales = to_uint64(s13), to_uint64(s2)
    if experts.bits == 8:
        return ExpertOperands(experts.w13[e].t(), experts.w2[e].t(), *scales)
    if isinstance(experts, PackedInt4):
        packed13, packed2 = experts.packed13[e], experts.packed2[e]
    else:
        packed13, packed2 = (pack_int4_rows(weight[e]) for weight in (experts.w13, experts.w2))
    biases = _int4_bias(packed13, s13), _int4_bias(packed2, s2)
    return ExpertOperands(_nibbles(packed13, nibbles), _nibbles(packed2, nibbles), *scales, *biases)


def _nibbles(packed: Tensor, nibbles: Nibbles) -> Tensor:
    """int8 [N/2, K] -> int8 [K, N/2]; `.view(torch.int32)` of it is the other carrier, [K, N/8]."""
    return (packed ^ OFFSET_BINARY if nibbles == "offset_binary" else packed).t()


def _int4_bias(packed: Tensor, scale: Tensor) -> Tensor:
    """8 * sum over k of q[n, k], times scale[n] -> float32 [N]: what the split q = 16 high + low + 8 leaves out.

    Source: operator_readme.txt, A8W4-INT, step 1. The sum is a whole number below 2^24, exact in float32.
    """
    return 8.0 * sum_int4_rows(packed).float() * scale


def _int_values(o: ExpertOperands, four: bool, nibbles: Nibbles) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def values(weight: Tensor) -> Tensor:
        """int8 [K, N]; INT4 in either carrier, int8 [K, N/2] or int32 [K, N/8] -> int8 [N, K]."""
        if not four:
            return _k_last(weight)
        plain = format_cast(weight, AclFormat.ND).view(torch.int8)
        return unpack_int4(plain, nibbles == "offset_binary").t().contiguous()

    return values(o.l1), from_uint64(_there(o.l1_sf, "l1_sf")), values(o.l2), from_uint64(_there(o.l2_sf, "l2_sf"))


# K last: 950.


def _mx(experts: MxExperts, e: int) -> ExpertOperands:
    # FP8 gets torch's float8 dtype, which tells the operator the type; FP4 stays uint8 and needs a weight type.
    dtype = TORCH_DTYPE.get(experts.elem, torch.uint8)
    l1, l2 = (codes[e].contiguous().view(dtype) for codes in (experts.w13, experts.w2))
    # A view changes no byte, a copy_ between uint8 and e8m0 would.
    scales = (pair_scales(scale[e]).contiguous() for scale in (experts.w13_scale, experts.w2_scale))
    return ExpertOperands(l1, l2, *(scale.view(torch.float8_e8m0fnu) for scale in scales))


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
