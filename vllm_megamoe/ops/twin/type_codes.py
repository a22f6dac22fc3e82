"""dtype arguments as plain integers, which is all that a custom op's schema takes."""

import torch

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.acl import AclDtype, normalise_dtype

ABSENT = -1


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def code_of(name: str, value: torch.dtype | int | None) -> int:
    """ACL's number of a dtype argument in any spelling (op csrc, GetAclDataType), ABSENT for None.

    Raises:
        OperatorError: no code of the operator.
    """
    try:
        found = normalise_dtype(value, name)
    except ValueError as e:
        raise OperatorError(f"mega_moe: {e}") from e
    return ABSENT if found is None else int(found)


def dtype_from(code: int) -> AclDtype | None:
    """The inverse of `code_of`."""
    return None if code == ABSENT else AclDtype(code)
