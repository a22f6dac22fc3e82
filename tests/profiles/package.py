"""A stand-in for the operator's package, and what a rank of two does with it through the adapter."""

from types import SimpleNamespace
from typing import Any

from profiles.layers import DEMO, buffer_arguments, call_arguments
from torch import Tensor

from vllm_megamoe.ops import SymmBuffer, mega_moe
from vllm_megamoe.ops.arguments import CreateArguments
from vllm_megamoe.ops.cann import adapter
from vllm_megamoe.ops.settings import Settings, active_settings


class Group:
    """A communicator of two ranks."""

    group_name = "ep"

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


class Package:
    """Stands in for the operator's package: what reaches it."""

    def __init__(self) -> None:
        self.created: list[Any] = []
        self.calls = 0

    def create(self, group: Any, **arguments: Any) -> Any:
        window = {"ccl_buffer_size": 400 << 20, "group": group, "ep_world_size": group.size(), "topo_type": 0}
        self.created.append(SimpleNamespace(**arguments, **window))
        return self.created[-1]

    def run(self, **arguments: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return arguments["x"], arguments["topk_ids"]


def create(group: Group, kind: str = "a16w16", **changes: Any) -> SymmBuffer:
    said: dict[str, Any] = buffer_arguments(kind, DEMO) | changes
    return adapter.create(CreateArguments(group=group, **said), active_settings() or Settings())


def run(buffer: SymmBuffer, kind: str = "a16w16", **changes: Any) -> None:
    mega_moe(**call_arguments(kind, DEMO, 0) | changes, sym_buffer=buffer)
