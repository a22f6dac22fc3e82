"""Canonical experts -> the operator's operands of a use case, and back (operator.md section 5, checkpoints.md 1 and 5).

A2/A3 take K-first matrices ([H, 2I], [I, H]), 950 takes them as the checkpoint has them ([2I, H], [H, I]).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.formatted import format_cast
from vllm_megamoe.layout.nibbles import pack_int4, unpack_int4
from vllm_megamoe.layout.scales import from_uint64, pair_scales, to_uint64, unpair_scales
from vllm_megamoe.numerics.minifloat import Elem
from vllm_megamoe.numerics.mx import GROUP
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase
from vllm_megamoe.weights import DenseExperts, Experts, IntExperts, MxExperts


@dataclass(frozen=True, slots=True)
class ExpertOperands:
    """Operands of one expert, ready for the operator's per-expert lists; None where the use case has none.

    Attributes:
        l1, l2: weights.
        l1_sf, l2_sf: scales.
        l1_bias, l2_bias: compensation biases of INT4.
    """

    l1: Tensor
    l2: Tensor
    l1_sf: Tensor | None
    l2_sf: Tensor | None
    l1_bias: Tensor | None
    l2_bias: Tensor | None


def to_operands(experts: Experts, use_case: UseCase) -> list[ExpertOperands]:
    """One ExpertOperands for each of the experts, values unchanged.

    Raises:
        LayoutError: the experts' kind or width does not fit the use case; quantise or unpack them first.
    """
    facts = USE_CASES[use_case]
    if isinstance(experts, DenseExperts) and facts.family == "dense":
        return [_dense(experts, e) for e in range(experts.num_experts)]
    if isinstance(experts, IntExperts) and facts.family == "int" and experts.bits <= facts.weight_bits:
        return [_int(experts, e, facts.weight_bits) for e in range(experts.num_experts)]
    bits = 4 if isinstance(experts, MxExperts) and experts.elem == "e2m1" else 8
    if isinstance(experts, MxExperts) and facts.family == "mx" and bits == facts.weight_bits:
        return [_mx(experts, e, use_case) for e in range(experts.num_experts)]
    raise LayoutError(
        f"{type(experts).__name__} cannot become operands of {use_case.value}, which takes {facts.family} experts of "
        f"{facts.weight_bits} bits; choose another use case or convert the experts first."
    )


def from_operands(operands: list[ExpertOperands], use_case: UseCase, elem: Elem = "e4m3") -> Experts:
    """The inverse: canonical experts out of a list of operands.

    Args:
        operands: of all experts, per-expert form.
        use_case: their use case.
        elem: element format of an `a8w8-fp` weight, which its bytes do not tell.
    """
    family, bits = USE_CASES[use_case].family, USE_CASES[use_case].weight_bits
    if family == "dense":
        return DenseExperts(_stack([o.l1.t() for o in operands]), _stack([o.l2.t() for o in operands]))
    if family == "int":
        return IntExperts(
            _stack([_plain_int(o.l1, bits) for o in operands]),
            _stack([from_uint64(_present(o.l1_sf)) for o in operands]),
            _stack([_plain_int(o.l2, bits) for o in operands]),
            _stack([from_uint64(_present(o.l2_sf)) for o in operands]),
            bits=4 if bits == 4 else 8,
        )
    per_byte = 2 if bits == 4 else 1
    plain1 = [format_cast(o.l1, AclFormat.ND).view(torch.uint8) for o in operands]
    plain2 = [format_cast(o.l2, AclFormat.ND).view(torch.uint8) for o in operands]
    groups = [-(-w.shape[1] * per_byte // GROUP) for w in (plain1[0], plain2[0])]
    return MxExperts(
        _stack(plain1),
        _stack([unpair_scales(_present(o.l1_sf).view(torch.uint8), groups[0]) for o in operands]),
        _stack(plain2),
        _stack([unpair_scales(_present(o.l2_sf).view(torch.uint8), groups[1]) for o in operands]),
        "e2m1" if bits == 4 else elem,
    )


def compensation_bias(codes: Tensor, scale: Tensor) -> Tensor:
    """INT4's bias: int8 codes [N, K], float32 scale [N] -> float32 [N] = 8 * sum_k(codes) * scale.

    The low digit of an activation is stored less 8; this puts the 8 back (operator_readme.txt, A8W4-INT).
    """
    return 8.0 * codes.to(torch.float32).sum(dim=1) * scale


def _dense(experts: DenseExperts, e: int) -> ExpertOperands:
    l1, l2 = experts.w13[e].t().contiguous(), experts.w2[e].t().contiguous()
    return ExpertOperands(l1, l2, None, None, None, None)


def _int(experts: IntExperts, e: int, bits: int) -> ExpertOperands:
    made: list[Tensor] = []
    biases: list[Tensor | None] = []
    for codes, scale in ((experts.w13[e], experts.w13_scale[e]), (experts.w2[e], experts.w2_scale[e])):
        matrix = codes.t().contiguous()
        # Bytes of two nibbles along N, then NZ over bytes: identical to NZ over nibbles with C0 = 64.
        made.append(format_cast(pack_int4(matrix) if bits == 4 else matrix, AclFormat.FRACTAL_NZ))
        biases.append(compensation_bias(codes, scale) if bits == 4 else None)
    scales = to_uint64(experts.w13_scale[e]), to_uint64(experts.w2_scale[e])
    return ExpertOperands(made[0], made[1], scales[0], scales[1], biases[0], biases[1])


# How packed bytes are cast so that the operator sees the format of its scenario table.
_MX_FORMATS = {
    UseCase.A8W8_FP: (AclFormat.ND, AclFormat.ND),
    UseCase.A8W4_FP: (AclFormat.FRACTAL_NZ_C0_16, AclFormat.FRACTAL_NZ_C0_16),
    UseCase.A4W4_FP: (AclFormat.FRACTAL_NZ, AclFormat.FRACTAL_NZ_C0_16),
}
_MX_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.uint8}


def _mx(experts: MxExperts, e: int, use_case: UseCase) -> ExpertOperands:
    dtype = _MX_DTYPES[experts.elem]
    format1, format2 = _MX_FORMATS[use_case]
    return ExpertOperands(
        format_cast(experts.w13[e].contiguous().view(dtype), format1),
        format_cast(experts.w2[e].contiguous().view(dtype), format2),
        pair_scales(experts.w13_scale[e]).contiguous().view(torch.float8_e8m0fnu),
        pair_scales(experts.w2_scale[e]).contiguous().view(torch.float8_e8m0fnu),
        None,
        None,
    )


def _plain_int(weight: Tensor, bits: int) -> Tensor:
    plain = format_cast(weight, AclFormat.ND)
    return (unpack_int4(plain.view(torch.int8)) if bits == 4 else plain).t()


def _present(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise LayoutError("an operand that needs scales has none; wanted l1_sf and l2_sf beside l1 and l2.")
    return tensor


def _stack(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.contiguous() for tensor in tensors])
