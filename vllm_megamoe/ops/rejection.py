"""How the operator says no: one form for every rejection, and the product's rules in that form."""

from collections.abc import Sequence

import torch

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.dtypes import dtype_of
from vllm_megamoe.profiles.facts import Broken


def rejection(argument: str, value: object, rule: object, source: str, remedy: str) -> OperatorError:
    """The error to raise for an argument that the operator rejects.

    Args:
        argument: name in the public signature.
        value: what came, as it should be printed.
        rule: what is expected, as the end of a sentence that begins so.
        source: document or file of the rule.
        remedy: what the caller can do, with a value.
    """
    return OperatorError(f"{argument}={value}; expected {rule} ({source}). {remedy}")


def raise_broken(broken: Sequence[Broken]) -> None:
    """Reject the first broken rule, and name the arguments of the others.

    Raises:
        OperatorError: any is broken.
    """
    if not broken:
        return
    first = broken[0]
    text = first.remedy
    if first.silent:
        text += f" The device would not reject: {first.silent}."
    if len(broken) > 1:
        text += f" Also rejected: {', '.join(f'{b.argument}={b.value}' for b in broken[1:])}."
    raise rejection(first.argument, first.value, first.expected, first.source, text)


def is_capturing() -> bool:
    """Whether a graph is being traced or captured: asked of torch.compile, and of torch_npu where it is loaded."""
    asked = getattr(getattr(torch, "npu", None), "is_current_stream_capturing", None)
    return torch.compiler.is_compiling() or bool(asked is not None and asked())


def type_name(dtype: torch.dtype) -> str:
    """`BF16`, `FLOAT`, ...: ACL's name of a tensor's type, as the rules spell it; torch's in capitals without one."""
    found = dtype_of(dtype)
    return str(dtype).removeprefix("torch.").upper() if found is None else found.name
