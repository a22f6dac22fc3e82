"""Format ids and dtype codes as the device numbers them (operator.md 1.5 and 5.1), in every spelling that callers use."""

from enum import IntEnum

import torch

from vllm_megamoe.errors import LayoutError


class AclFormat(IntEnum):
    """Storage formats. `FRACTAL_NZ` takes blocks of 32 bytes, `_C0_16` and `_C0_32` blocks of 16 and 32 elements."""

    ND = 2
    FRACTAL_NZ = 29
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51


class AclDtype(IntEnum):
    """Element types, by ACL's own numbers."""

    FLOAT = 0
    FLOAT16 = 1
    INT8 = 2
    BF16 = 27
    INT4 = 29
    FLOAT8_E5M2 = 35
    FLOAT8_E4M3FN = 36
    FLOAT4_E2M1 = 40


_OF_TORCH: dict[torch.dtype, AclDtype] = {
    torch.float32: AclDtype.FLOAT,
    torch.float16: AclDtype.FLOAT16,
    torch.int8: AclDtype.INT8,
    torch.bfloat16: AclDtype.BF16,
    torch.float8_e5m2: AclDtype.FLOAT8_E5M2,
    torch.float8_e4m3fn: AclDtype.FLOAT8_E4M3FN,
    torch.float4_e2m1fn_x2: AclDtype.FLOAT4_E2M1,
}
# Indices into torch's ScalarType table, the other spelling of the operator's wrapper.
_OF_ENUM = {1: AclDtype.INT8, 23: AclDtype.FLOAT8_E5M2, 24: AclDtype.FLOAT8_E4M3FN, 45: AclDtype.FLOAT4_E2M1}
_ACL_OFFSET = 256
_UNDEFINED = 28


def normalise_dtype(value: "torch.dtype | int | None", where: str) -> AclDtype | None:
    """One element type out of a torch dtype, torch's enum number, or ACL's number + 256; None stays None.

    Raises:
        LayoutError: a code that the operator does not know.
    """
    if value is None or (isinstance(value, int) and value == _UNDEFINED):
        return None
    if isinstance(value, torch.dtype) and value in _OF_TORCH:
        return _OF_TORCH[value]
    if isinstance(value, int) and value in _OF_ENUM:
        return _OF_ENUM[value]
    if isinstance(value, int) and value - _ACL_OFFSET in set(AclDtype):
        return AclDtype(value - _ACL_OFFSET)
    known = ", ".join(f"{dtype.name}={dtype + _ACL_OFFSET}" for dtype in AclDtype)
    raise LayoutError(f"{where}={value!r} is no dtype code; wanted a torch dtype, 1/23/24, or one of {known}.")


def dtype_of(value: torch.dtype) -> AclDtype | None:
    """The element type of a tensor's dtype, None where the operator has none."""
    return _OF_TORCH.get(value)
