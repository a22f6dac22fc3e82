"""One form for every rejection: the argument, its value, the rule, where the rule stands, what to do.

Whether a graph is being traced or captured at the moment.

ACL's name of a tensor's type, as the rules of products spell it.
"""

import torch

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.dtypes import dtype_of


def rejection(argument: str, value: object, rule: object, source: str, remedy: str) -> OperatorError:
    """The error to raise for an argument that the operator rejects.

    Args:
        argument: name in the public signature.
        value: what came, as it should be printed.
        rule: what is expected, as the end of a sentence that begins so.
        source: document or file of the rule.
        remedy: what the caller can do.
    """
    return OperatorError(f"{argument}={value}; expected {rule} ({source}). {remedy}")


def is_capturing() -> bool:
    """Asked of torch.compile, and of torch_npu where something else has loaded it."""
    asked = getattr(getattr(torch, "npu", None), "is_current_stream_capturing", None)
    return torch.compiler.is_compiling() or bool(asked is not None and asked())


def type_name(dtype: torch.dtype) -> str:
    """`BF16`, `FLOAT`, ...; torch's own name in capitals where ACL has none. Packed FP4 is the only x in uint8."""
    found = AclDtype.FLOAT4_E2M1 if dtype == torch.uint8 else dtype_of(dtype)
    return str(dtype).removeprefix("torch.").upper() if found is None else found.name
