"""Kernels that Python code registers for the NPU answer for CPU tensors, which is what all tensors are."""

from typing import Any

import torch

_KEYS = {"PrivateUse1": "CPU"}


def implement_on_cpu() -> None:
    """Let `torch.library.Library.impl` take PrivateUse1 for CPU."""
    original = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *rest: Any, **options: Any) -> Any:
        key = _KEYS.get(dispatch_key, dispatch_key)
        return original(self, op_name, fn, key, *rest, **options)  # type: ignore[no-untyped-call]

    torch.library.Library.impl = impl  # type: ignore[method-assign]
