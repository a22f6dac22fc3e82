"""The extension comm_context: what a SymmBuffer of the real wrapper asks for its communicator."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vllm_megamoe.simulator.device import Device


def make_manager(device: Device) -> type:
    """The class CommContextManager, bound to a device (op csrc, comm_context.cpp)."""

    class CommContextManager:
        """One buffer's hold on its communicator."""

        def __init__(
            self,
            group: str,
            worldSize: int,
            backend: str | Mapping[str, str] = "kfc",
            commAlg: str = "ub-mem",
            opName: str = "moe_dispatch_ffn_combine",
            customCclBufferSize: int = 0,
        ) -> None:
            self._communicator = device.communicators.named(group)
            self._wanted, self._size = customCclBufferSize, 0
            self._free: Any = None
            self.topo_type = 0
            self.rank_num_per_server = worldSize

        @property
        def ccl_buffer_size(self) -> int:
            return self._size

        def create_context(self) -> Tensor:
            context, self._size, memory = self._communicator.open(self._wanted)
            if memory is not None:
                self._free = weakref.finalize(self, memory.free)
            return context

        def destroy(self) -> None:
            if self._free is not None:
                self._free()

    return CommContextManager
