"""Make the twin's SymmBuffer: the group looked up, the arguments checked."""

from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.checks.buffer import check_buffer
from vllm_megamoe.ops.twin.checks.profile import buffer_facts, window_bytes
from vllm_megamoe.ops.twin.link import link_of


def create_twin_buffer(
    group: ProcessGroup | str | None, sizes: tuple[int, ...], arguments: dict[str, Any], config: Settings
) -> SymmBuffer:
    """A checked buffer on a process group, on the group of that name, or for a single rank."""
    buffer = SymmBuffer(find_group(group), *sizes, settings=config, **arguments)
    link = None if buffer.group is None else link_of(buffer.group)
    if link is not None:
        buffer.number, buffer.siblings = link.buffers + 1, link.live
    check_buffer(buffer, config)
    buffer.created = buffer_facts(buffer)
    buffer.ccl_buffer_size = window_bytes(config.found_profile, buffer.created)
    if link is not None:
        link.buffers += 1
        link.live[buffer.number] = buffer
    return buffer


def find_group(group: ProcessGroup | str | None) -> ProcessGroup | None:
    """A group by itself or by the name that torch gave it when this process made it.

    Raises:
        OperatorError: no such group here, or this rank is no member of it.
    """
    if isinstance(group, str):
        try:
            group = torch._C._distributed_c10d._resolve_process_group(GroupName(group))
        except RuntimeError as e:
            raise OperatorError(
                f"get_symm_buffer_for_mega_moe: group={group!r} is no process group of this process; pass the group "
                "that torch.distributed.new_group returned, or its group_name."
            ) from e
    if group is not None and not isinstance(group, ProcessGroup):
        raise OperatorError(
            f"get_symm_buffer_for_mega_moe: group={group!r} ({type(group).__name__}); expected a "
            "torch.distributed.ProcessGroup that this rank belongs to, its name, or None for a single rank."
        )
    return group
