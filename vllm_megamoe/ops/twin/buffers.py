"""The twin as a backend: it makes SymmBuffers, groups looked up and arguments checked, and runs their calls."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.arguments import CallArguments, CreateArguments, check_create
from vllm_megamoe.ops.buffer import SymmBuffer, check_new, communicator_of
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.op import run_op
from vllm_megamoe.ops.twin.read_call import check_configuration, window_bytes
from vllm_megamoe.ops.twin.state import TwinState, register


class TwinBuffer(TwinState):
    """What the twin keeps for a buffer, and the way into its custom op."""

    def call(self, arguments: CallArguments) -> tuple[Tensor, Tensor]:
        """Run `mega_moe`; torch.compile traces this far."""
        return run_op(arguments, self.handle)


def create(arguments: CreateArguments, settings: Settings) -> SymmBuffer:
    """A checked buffer on a process group, on the group of that name, or for a single rank.

    Raises:
        OperatorError: no such group, or an argument that the twin, or the profile's product, rejects.
        ConfigError: HCCL_BUFFSIZE is no number of MB.
    """
    buffer = SymmBuffer(find_group(arguments.group), arguments, settings)
    profile = settings.found_profile
    free = profile.product == "none"
    check_create(arguments, late=free)
    facts = check_new(buffer, profile)
    check_configuration(buffer, modes=free)
    buffer.ccl_buffer_size = window_bytes(profile, facts)
    number = communicator_of(buffer.group).add(buffer, facts)
    buffer.held = TwinBuffer(number, facts)
    register(buffer)
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
