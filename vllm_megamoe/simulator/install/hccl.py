"""Process groups of backend `hccl`: gloo's, with the method by which HCCL names its communicators."""

from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import GroupName, ProcessGroup, ProcessGroupGloo

from vllm_megamoe.simulator.device import Device


def register_hccl(device: Device) -> None:
    """Register the backend for devices npu and cpu."""
    # Held, so that the object which Python hands out for a backend stays the same one.
    opened: dict[Any, tuple[str, Any]] = {}

    def create(options: Any, settings: Any) -> Any:
        backend = ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
        opened[backend] = (options.group_id, settings)
        return backend

    def get_hccl_comm_name(self: Any, rank: int, init_comm: bool = True) -> str:
        del rank
        name, settings = opened[self]
        group: ProcessGroup = torch._C._distributed_c10d._resolve_process_group(GroupName(name))
        if init_comm:
            config = getattr(settings, "hccl_config", None) or {}
            return device.communicators.make(group, config.get("hccl_buffer_size")).name
        return device.communicators.find(group).name

    ProcessGroupGloo.get_hccl_comm_name = get_hccl_comm_name  # type: ignore[attr-defined]
    dist.Backend.register_backend("hccl", create, extended_api=True, devices=["npu", "cpu"])
    dist.is_hccl_available = lambda: True  # type: ignore[attr-defined]


class Options:
    """`torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options`.

    Attributes:
        hccl_config: such as {"hccl_buffer_size": MB of one direction}.
    """

    def __init__(self, *arguments: Any) -> None:
        del arguments
        self.hccl_config: dict[str, Any] = {}
