"""Element types in every spelling that callers use: torch dtypes, torch's enum numbers, ACL's numbers + 256."""

import torch

from vllm_megamoe.acl import CODE_OFFSET, AclDtype
from vllm_megamoe.errors import LayoutError

_OF_TORCH: dict[torch.dtype, AclDtype] = {
    torch.float32: AclDtype.FLOAT,
    torch.float16: AclDtype.FLOAT16,
    torch.int8: AclDtype.INT8,
    torch.bfloat16: AclDtype.BF16,
    torch.float8_e5m2: AclDtype.FLOAT8_E5M2,
    torch.float8_e4m3fn: AclDtype.FLOAT8_E4M3FN,
    torch.float8_e8m0fnu: AclDtype.FLOAT8_E8M0,
    torch.float4_e2m1fn_x2: AclDtype.FLOAT4_E2M1,
}
CODES: dict[torch.dtype, int] = {dtype: found.code for dtype, found in _OF_TORCH.items()}
"""torch's dtypes as the numbers that dtype arguments of the operator carry."""

# Below 256 a number is an index into torch's ScalarType table (csrc GetAclDataType).
OF_ENUM = {1: AclDtype.INT8, 23: AclDtype.FLOAT8_E5M2, 24: AclDtype.FLOAT8_E4M3FN, 45: AclDtype.FLOAT4_E2M1}
_UNDEFINED = 28  # GE's DT_UNDEFINED, the default before None was


def normalise_dtype(value: "torch.dtype | int | None", where: str) -> AclDtype | None:
    """One element type out of a torch dtype, torch's enum number, or ACL's number + 256; None and 28 are None.

    Args:
        where: the argument's name, for the error.

    Raises:
        LayoutError: a code that the operator does not know.
    """
    if isinstance(value, bool):  # Python's True is an int, and torch's enum number 1 is INT8
        raise LayoutError(_wrong(where, value))
    if value is None or (isinstance(value, int) and value == _UNDEFINED):
        return None
    if isinstance(value, torch.dtype) and value in _OF_TORCH:
        return _OF_TORCH[value]
    if isinstance(value, int) and value in OF_ENUM:
        return OF_ENUM[value]
    if isinstance(value, int) and value - CODE_OFFSET in set(AclDtype):
        return AclDtype(value - CODE_OFFSET)
    raise LayoutError(_wrong(where, value))


def _wrong(where: str, value: object) -> str:
    known = ", ".join(f"{dtype.name}={dtype.code}" for dtype in AclDtype)
    expected = f"a torch dtype, {', '.join(map(str, OF_ENUM))}, or one of {known}"
    return f"{where}={value!r} is no dtype code; expected {expected}. Pass {where}=torch.int8, say."


def dtype_of(value: torch.dtype) -> AclDtype | None:
    """The element type of a tensor's dtype, None where the operator has none."""
    return _OF_TORCH.get(value)


def dtype_name(value: torch.dtype) -> str:
    """ACL's name of a tensor's dtype, torch's own in capitals where the operator has none."""
    found = dtype_of(value)
    return str(value).removeprefix("torch.").upper() if found is None else found.name
