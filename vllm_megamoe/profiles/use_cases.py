"""The six use cases of the operator, one row each.

Sources: operator_readme.txt, scenario tables of A2/A3 and MXFP constraints of 950; dtype codes and format ids as the
operator's torch extension reads them (csrc mega_moe.cpp), modes as vllm-ascend passes them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

# Format ids as the device numbers them; layout.AclFormat names them for users.
_ND, _NZ, _NZ_C0_32 = 2, 29, 51
# dtype codes from 256 on are ACL's own, offset by 256 (csrc GetAclDataType).
_INT8, _INT4, _E4M3, _E2M1 = 258, 285, 292, 296


class UseCase(StrEnum):
    """Activation and weight formats of a call."""

    A16W16 = "a16w16"
    A8W8_INT = "a8w8-int"
    A8W4_INT = "a8w4-int"
    A8W8_FP = "a8w8-fp"
    A8W4_FP = "a8w4-fp"
    A4W4_FP = "a4w4-fp"


@dataclass(frozen=True, slots=True)
class UseCaseFacts:
    """One row.

    Attributes:
        family: kind of canonical experts that it computes with.
        weight_bits: bits of a stored weight element.
        dispatch_quant_mode: 0 none, 2 INT8 per token, 4 MX groups of 32.
        dispatch_quant_out_dtype: what the buffer is created with; E5M2 weights take 291 in its place.
        weight_type: what `weight1_type` and `weight2_type` must say, None where the tensor's dtype says it.
        format1, format2: storage formats of the two weights as the operator sees them.
        has_scales: whether `l1_weights_sf` and `l2_weights_sf` are passed.
        has_bias: whether the compensation biases of INT4 are passed.
        products: where it runs.
    """

    family: Literal["dense", "int", "mx"]
    weight_bits: int
    dispatch_quant_mode: int
    dispatch_quant_out_dtype: int | None
    weight_type: int | None
    format1: int
    format2: int
    has_scales: bool
    has_bias: bool
    products: frozenset[str]


_A2_A3, _950 = frozenset({"a2", "a3"}), frozenset({"950"})

USE_CASES: dict[UseCase, UseCaseFacts] = {
    # BF16 must be ND: "FORMAT_ND for BF16 or FORMAT_FRACTAL_NZ for INT8/INT4" (tiling arch22).
    UseCase.A16W16: UseCaseFacts("dense", 16, 0, None, None, _ND, _ND, False, False, _A2_A3),
    # None as out dtype passes the first host check of int weights and fails when the tiling key is built.
    UseCase.A8W8_INT: UseCaseFacts("int", 8, 2, _INT8, _INT8, _NZ, _NZ, True, False, _A2_A3),
    # int8 [K, N/2] with type 285, as vllm-ascend passes it; an int32 carrier would take no type.
    UseCase.A8W4_INT: UseCaseFacts("int", 4, 2, _INT8, _INT4, _NZ, _NZ, True, True, _A2_A3),
    # E4M3 may be NZ too (both weights alike), E5M2 only ND (tiling arch35, format table).
    UseCase.A8W8_FP: UseCaseFacts("mx", 8, 4, _E4M3, None, _ND, _ND, True, False, _950),
    # operator_readme.txt, MXFP constraints: formats of FLOAT4_E2M1 weights.
    UseCase.A8W4_FP: UseCaseFacts("mx", 4, 4, _E4M3, _E2M1, _NZ_C0_32, _NZ_C0_32, True, False, _950),
    UseCase.A4W4_FP: UseCaseFacts("mx", 4, 4, _E2M1, _E2M1, _NZ, _NZ_C0_32, True, False, _950),
}
