"""Canonical experts <-> operands of a use case, one expert at a time (layouts: docs/layouts.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout import k_first, k_last
from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase
from vllm_megamoe.weights import DenseExperts, Experts, IntExperts, MxExperts


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
        raise LayoutError("no operands; wanted one entry for each expert.")
    facts = USE_CASES[use_case]
    if facts.family == "dense":
        pairs = [(k_first.weight_values(o.l1), k_first.weight_values(o.l2)) for o in operands]
        return DenseExperts(*(torch.stack(column) for column in zip(*pairs, strict=True)))
    if facts.family == "int":
        ints = [_int_values(o, facts.weight_bits, nibbles) for o in operands]
        w13, s13, w2, s2 = (torch.stack(column) for column in zip(*ints, strict=True))
        return IntExperts(w13, s13, w2, s2, bits=4 if facts.weight_bits == 4 else 8)
    mx = [_mx_values(o) for o in operands]
    w13, s13, w2, s2 = (torch.stack(column) for column in zip(*mx, strict=True))
    return MxExperts(w13, s13, w2, s2, k_last.elem_of(operands[0].l1))


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
    return ExpertOperands(k_first.dense_weight(experts.w13[e]), k_first.dense_weight(experts.w2[e]))


def _ints(experts: IntExperts, e: int, nibbles: Nibbles) -> ExpertOperands:
    w13, w2 = experts.w13[e], experts.w2[e]
    s13, s2 = experts.w13_scale[e], experts.w2_scale[e]
    scales = k_first.channel_scale(s13), k_first.channel_scale(s2)
    if experts.bits == 8:
        return ExpertOperands(k_first.int8_weight(w13), k_first.int8_weight(w2), *scales)
    return ExpertOperands(
        k_first.int4_weight(w13, nibbles),
        k_first.int4_weight(w2, nibbles),
        *scales,
        k_first.int4_bias(w13, s13),
        k_first.int4_bias(w2, s2),
    )


def _int_values(o: ExpertOperands, bits: int, nibbles: Nibbles) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if bits == 4:
        w13, w2 = k_first.int4_values(o.l1, nibbles), k_first.int4_values(o.l2, nibbles)
    else:
        w13, w2 = k_first.weight_values(o.l1), k_first.weight_values(o.l2)
    s13 = k_first.channel_scale_values(o.l1_sf, "l1_sf")
    return w13, s13, w2, k_first.channel_scale_values(o.l2_sf, "l2_sf")


def _mx(experts: MxExperts, e: int, formats: tuple[AclFormat, AclFormat]) -> ExpertOperands:
    return ExpertOperands(
        k_last.mx_weight(experts.w13[e], experts.elem, formats[0]),
        k_last.mx_weight(experts.w2[e], experts.elem, formats[1]),
        k_last.mx_scale(experts.w13_scale[e]),
        k_last.mx_scale(experts.w2_scale[e]),
    )


def _mx_values(o: ExpertOperands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden, intermediate = o.l2.shape[0], o.l1.shape[0] // 2
    s13 = k_last.mx_scale_bytes(o.l1_sf, hidden, "l1_sf")
    s2 = k_last.mx_scale_bytes(o.l2_sf, intermediate, "l2_sf")
    return k_last.mx_codes(o.l1), s13, k_last.mx_codes(o.l2), s2
