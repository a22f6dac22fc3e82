"""ACL's name of a tensor's type, as the rules of products spell it."""

import torch

from vllm_megamoe.layout.acl import AclDtype, dtype_of


def type_name(dtype: torch.dtype) -> str:
    """`BF16`, `FLOAT`, ...; torch's own name in capitals where ACL has none. Packed FP4 is the only x in uint8."""
    found = AclDtype.FLOAT4_E2M1 if dtype == torch.uint8 else dtype_of(dtype)
    return str(dtype).removeprefix("torch.").upper() if found is None else found.name
