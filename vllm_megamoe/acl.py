"""Formats and element types as the device numbers them: the owner of every such number and name, without torch.

Others derive: the use-case table, the limits and the plan by `AclDtype.name` and `.code`, `layout.dtypes` adds the
spellings that callers use (torch dtypes and torch's own numbers).
"""

from enum import IntEnum

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
CODE_OFFSET = 256


def block_columns(fmt: AclFormat, itemsize: int) -> int:
    """C0, the columns of one block, for elements of `itemsize` bytes.

    Raises:
        LayoutError: ND has no blocks.
    """
    if fmt == AclFormat.FRACTAL_NZ:
        return NZ_BLOCK_BYTES // itemsize
    if fmt in (AclFormat.FRACTAL_NZ_C0_16, AclFormat.FRACTAL_NZ_C0_32):
        return 16 if fmt == AclFormat.FRACTAL_NZ_C0_16 else 32
    raise LayoutError(f"format {fmt.name} has no blocks; expected FRACTAL_NZ, FRACTAL_NZ_C0_16 or FRACTAL_NZ_C0_32.")


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

    @property
    def code(self) -> int:
        """The number as dtype arguments of the operator carry it: ACL's own + 256 (csrc GetAclDataType)."""
        return int(self) + CODE_OFFSET

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS.get(self, 8)


_BITS = {
    AclDtype.FLOAT: 32,
    AclDtype.FLOAT16: 16,
    AclDtype.BF16: 16,
    AclDtype.INT4: 4,
    AclDtype.FLOAT4_E2M1: 4,
}
