"""The six use cases of the operator, one row each: what is computed with what, and how both are stored.

Sources: operator_readme.txt, scenario tables of A2/A3 and MXFP constraints of 950; modes as vllm-ascend passes them.
Where a use case runs is a limit of the profile: `Limits.use_cases`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from vllm_megamoe.acl import AclDtype, AclFormat


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
        element: of both weights; A8W8-FP takes FLOAT8_E5M2 too, with rows of the same.
        dispatch_quant_mode: 0 none, 2 INT8 per token, 4 MX groups of 32.
        dispatched: what rows are quantised to on their way out, None where they stay BF16.
        typed: whether `weight1_type` and `weight2_type` must say the element, because the tensor's dtype does not.
        format1, format2: storage formats of the two weights as the operator sees them.
    """

    family: Literal["dense", "int", "mx"]
    element: AclDtype
    dispatch_quant_mode: int
    dispatched: AclDtype | None
    typed: bool
    format1: AclFormat
    format2: AclFormat

    @property
    def weight_bits(self) -> int:
        """Bits of a stored weight element."""
        return self.element.bits

    @property
    def dispatch_quant_out_dtype(self) -> int | None:
        """Code that the buffer is created with."""
        return None if self.dispatched is None else self.dispatched.code

    @property
    def weight_type(self) -> int | None:
        """Code that `weight1_type` and `weight2_type` must say, None where the tensor's dtype says it."""
        return self.element.code if self.typed else None

    @property
    def has_scales(self) -> bool:
        """Whether `l1_weights_sf` and `l2_weights_sf` are passed."""
        return self.family != "dense"

    @property
    def has_bias(self) -> bool:
        """Whether the compensation biases of INT4 are passed."""
        return self.element is AclDtype.INT4


_ND, _NZ, _NZ_C0_32 = AclFormat.ND, AclFormat.FRACTAL_NZ, AclFormat.FRACTAL_NZ_C0_32
_BF16, _INT8, _INT4 = AclDtype.BF16, AclDtype.INT8, AclDtype.INT4
_E4M3, _E2M1 = AclDtype.FLOAT8_E4M3FN, AclDtype.FLOAT4_E2M1

USE_CASES: dict[UseCase, UseCaseFacts] = {
    # BF16 must be ND: "FORMAT_ND for BF16 or FORMAT_FRACTAL_NZ for INT8/INT4" (tiling arch22).
    UseCase.A16W16: UseCaseFacts("dense", _BF16, 0, None, False, _ND, _ND),
    # None as out dtype passes the first host check of int weights and fails when the tiling key is built.
    UseCase.A8W8_INT: UseCaseFacts("int", _INT8, 2, _INT8, True, _NZ, _NZ),
    # int8 [K, N/2] with type 285, as vllm-ascend passes it; an int32 carrier would take no type.
    UseCase.A8W4_INT: UseCaseFacts("int", _INT4, 2, _INT8, True, _NZ, _NZ),
    # E4M3 may be NZ too (both weights alike), E5M2 only ND (tiling arch35, format table).
    UseCase.A8W8_FP: UseCaseFacts("mx", _E4M3, 4, _E4M3, False, _ND, _ND),
    # operator_readme.txt, MXFP constraints: formats of FLOAT4_E2M1 weights.
    UseCase.A8W4_FP: UseCaseFacts("mx", _E2M1, 4, _E4M3, True, _NZ_C0_32, _NZ_C0_32),
    UseCase.A4W4_FP: UseCaseFacts("mx", _E2M1, 4, _E2M1, True, _NZ, _NZ_C0_32),
}
