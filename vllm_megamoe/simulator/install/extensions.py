"""`torch.utils.cpp_extension.load`: the operator's two extensions are the simulated device, all others inert."""

from types import ModuleType, SimpleNamespace
from typing import Any

import torch.utils.cpp_extension

from vllm_megamoe.simulator.device import Device
from vllm_megamoe.simulator.install.comm_context import make_manager
from vllm_megamoe.simulator.install.operator_extension import OperatorExtension


class Inert(ModuleType):
    """An extension that can be loaded and not called."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*arguments: Any, **options: Any) -> Any:
            raise NotImplementedError(f"extension {self.__name__}: {name} is not simulated")

        return refuse


def replace_load(device: Device) -> None:
    """Put the simulated extensions in place of compiled ones; call it before the operator's package is imported."""
    known: dict[str, Any] = {
        "npu_mega_moe": OperatorExtension(device),
        "comm_context": SimpleNamespace(CommContextManager=make_manager(device)),
    }

    def load(name: str, *arguments: Any, **options: Any) -> Any:
        return known.get(name) or Inert(name)

    torch.utils.cpp_extension.load = load
