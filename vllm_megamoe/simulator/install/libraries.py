"""Kernels that Python code registers for the NPU answer for CPU tensors, which is what all tensors are."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from vllm_megamoe.simulator.install.device_mode import DeviceMode

_KEYS = {"PrivateUse1": "CPU"}


def implement_on_cpu() -> None:
    """Let `torch.library.Library.impl` take PrivateUse1 for CPU, and its kernels see the CPU as `npu` too."""
    original = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *rest: Any, **options: Any) -> Any:
        key = _KEYS.get(dispatch_key, dispatch_key)
        kernel = _under_mode(fn) if key == "CPU" else fn
        return original(self, op_name, kernel, key, *rest, **options)  # type: ignore[no-untyped-call]

    torch.library.Library.impl = impl  # type: ignore[method-assign]


def _under_mode(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with the mode on: torch switches a mode off while it handles the call that leads here."""

    @functools.wraps(kernel)
    def run(*arguments: Any, **options: Any) -> Any:
        with DeviceMode():
            return kernel(*arguments, **options)

    return run
