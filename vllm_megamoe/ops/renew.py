"""A buffer moved to another communicator: same object, same configuration, everything else made anew."""

from torch.distributed import ProcessGroup

from vllm_megamoe.ops.arguments import CREATE, CreateArguments
from vllm_megamoe.ops.backend import backend_of
from vllm_megamoe.ops.buffer import SymmBuffer, communicator_of


def renew(buffer: SymmBuffer, group: ProcessGroup) -> None:
    """Let a destroyed buffer live on, on `group`; on all ranks of it together.

    Whoever holds the buffer goes on to use it; a graph that was captured with it has to be captured again.

    Raises:
        OperatorError: the group's communicator cannot carry it.
    """
    said = {argument.name: getattr(buffer, argument.name) for argument in CREATE[1:]}
    made = backend_of(buffer.settings).create(CreateArguments(group=group, **said), buffer.settings)
    vars(buffer).update(vars(made))
    communicator_of(group).hand_over(made, buffer)
