"""The twin as a backend: it makes SymmBuffers, groups looked up and arguments checked, and runs their calls."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.arguments import CallArguments, CreateArguments, check_create
from vllm_megamoe.ops.buffer import BoundCall, SymmBuffer, check_new, communicator_of
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.known import read_known, reader_of, with_rows
from vllm_megamoe.ops.twin.op import run_op
from vllm_megamoe.ops.twin.read_call import check_configuration, window_bytes
from vllm_megamoe.ops.twin.run import run_call
from vllm_megamoe.ops.twin.state import TwinState, buffer_of, register


def _is_traced() -> bool:
    """Whether a mode looks at every operation: fake tensors, make_fx."""
    return torch._C._len_torch_dispatch_stack() > 0


class TwinBuffer(TwinState):
    """What the twin keeps for a buffer, and the way into its custom op."""

    def call(self, arguments: CallArguments) -> tuple[Tensor, Tensor]:
        """Run `mega_moe`: at once, or where torch traces, or x is no plain tensor, through the custom op."""
        x = arguments.x
        if torch.compiler.is_compiling() or type(x) is not Tensor or _is_traced():
            return run_op(arguments, self.handle)
        buffer = buffer_of(self.handle)
        with torch.no_grad():
            return run_call(buffer, lambda config: read_known(arguments, buffer, config))

    def bind(self, fixed: CallArguments) -> BoundCall:
        """See `ops.api.bind`: what was read of `fixed` in its first call is kept."""
        buffer: SymmBuffer = fixed.sym_buffer
        read = reader_of(fixed)

        def call(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            rows = (x, topk_ids, topk_weights, mask)
            if torch.compiler.is_compiling() or type(x) is not Tensor or _is_traced():
                return self.call(with_rows(fixed, rows))
            with torch.no_grad():
                return run_call(buffer, lambda config: read(rows, config))

        return call


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
