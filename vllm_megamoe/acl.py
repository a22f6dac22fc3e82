"""Format ids and dtype codes as the device numbers them, in every spelling that callers use."""

from enum import IntEnum

import torch

from vllm_megamoe.errors import LayoutError


class AclFormat(IntEnum):
    """Storage formats (aclFormat of CANN). FRACTAL_NZ has blocks of 32 bytes, the others of as many elements as named.

    Two 4-bit elements share a byte, so a packed byte tensor in FRACTAL_NZ_C0_16 has blocks of 32 nibbles: the operator
    sees it as FRACTAL_NZ_C0_32.
    """

    ND = 2
    FRACTAL_NZ = 29
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51


NZ_BLOCK_BYTES = 32


def block_columns(fmt: AclFormat, itemsize: int) -> int:
    """C0, the columns of one block, for elements of `itemsize` bytes.

    Raises:
        LayoutError: ND has no blocks.
    """
    if fmt == AclFormat.FRACTAL_NZ:
        return NZ_BLOCK_BYTES // itemsize
    if fmt in (AclFormat.FRACTAL_NZ_C0_16, AclFormat.FRACTAL_NZ_C0_32):
        return 16 if fmt == AclFormat.FRACTAL_NZ_C0_16 else 32
    raise LayoutError(f"format {fmt.name} has no blocks; wanted FRACTAL_NZ, FRACTAL_NZ_C0_16 or FRACTAL_NZ_C0_32.")


def format_for_packed(fmt: AclFormat) -> AclFormat:
    """The format that the operator sees where a byte tensor carries two 4-bit elements a byte (csrc mega_moe.cpp).

    Raises:
        LayoutError: FRACTAL_NZ_C0_32, whose 32-byte blocks would be 64 nibbles under the name of 32.
    """
    if fmt == AclFormat.FRACTAL_NZ_C0_16:
        return AclFormat.FRACTAL_NZ_C0_32
    if fmt == AclFormat.FRACTAL_NZ_C0_32:
        raise LayoutError(
            "a packed 4-bit tensor is in FRACTAL_NZ_C0_32, blocks of 32 bytes = 64 elements; cast it to "
            "FRACTAL_NZ_C0_16 instead: 16 bytes are the 32 elements that the operator calls C0_32."
        )
    return fmt


class AclDtype(IntEnum):
    """Element types by ACL's own numbers (aclDataType of CANN)."""

    FLOAT = 0
    FLOAT16 = 1
    INT8 = 2
    BF16 = 27
    INT4 = 29
    FLOAT8_E5M2 = 35
    FLOAT8_E4M3FN = 36
    FLOAT8_E8M0 = 37
    FLOAT4_E2M1 = 40


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
# Below 256 a number is an index into torch's ScalarType table (csrc GetAclDataType).
_OF_ENUM = {1: AclDtype.INT8, 23: AclDtype.FLOAT8_E5M2, 24: AclDtype.FLOAT8_E4M3FN, 45: AclDtype.FLOAT4_E2M1}
_ACL_OFFSET = 256
_UNDEFINED = 28  # GE's DT_UNDEFINED, the default before None was


def normalise_dtype(value: "torch.dtype | int | None", where: str) -> AclDtype | None:
    """One element type out of a torch dtype, torch's enum number, or ACL's number + 256; None and 28 are None.

    Args:
        where: the argument's name, for the error.

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
    raise LayoutError(f"{where}={value!r} is no dtype code; wanted a torch dtype, 1, 23, 24, or one of {known}.")


def dtype_of(value: torch.dtype) -> AclDtype | None:
    """The element type of a tensor's dtype, None where the operator has none."""
    return _OF_TORCH.get(value)
