"""A handle for each layer, one SymmBuffer behind those that agree on communicator and operator configuration.

On A2/A3 every buffer of a communicator is a view of the same window; on 950 a second allocation on a communicator is
unusable (op csrc, comm_context). So storage is shared, and this module owns it:

- The first layer of a configuration makes the storage, on all ranks of the communicator together.
- It is destroyed when its group is gone (another engine has started in this process) and when the process ends, always
  in order of creation. A layer that is gone destroys nothing: when Python frees it differs from rank to rank, and
  buffers of a communicator must come and go in the same order on all of them.
- Where the platform takes its communicators away for a while (sleep), storage is suspended before and made anew on the
  new ones after; handles and buffers stay the same objects.
- A handle lives as long as its layer keeps it, and counts no longer once its storage is destroyed.
"""

import atexit
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, settings
from vllm_megamoe.ops.arguments import CREATE, CreateArguments
from vllm_megamoe.ops.backend import backend_of
from vllm_megamoe.ops.buffer import communicator_of
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Handle:
    """One layer's claim on storage; the layer keeps it.

    Attributes:
        layer: the layer's name.
        buffer: what its calls use.
    """

    layer: str
    buffer: SymmBuffer


@dataclass(frozen=True, slots=True)
class _Storage:
    """What one buffer was made for, and by which layer."""

    buffer: SymmBuffer
    group: ProcessGroup | None
    layer: str


_Key = tuple[str, BufferFacts, Profile, str]
_storages: dict[_Key, _Storage] = {}
"""In order of creation."""
_handles: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def open_handle(layer: str, plan: LayerPlan, seat: Seat) -> Handle:
    """The buffer that this layer's calls use; on all ranks of the communicator in the same order.

    Call it while weights are processed, so before any graph is captured.

    Raises:
        ConfigError: 950, and the communicator carries another configuration already.
    """
    name = seat.group.group_name if seat.group is not None else ""
    _destroy([key for key, storage in _storages.items() if _is_gone(storage.group) or _is_replaced(key, storage, seat)])
    key = (name, plan.buffer, plan.profile, plan.backend)
    if key not in _storages:
        _reject_second(layer, plan, seat)
        _storages[key] = _Storage(_create(plan, seat), seat.group, layer)
    handle = Handle(layer, _storages[key].buffer)
    _handles[next(_numbers)] = handle
    return handle


def handles() -> tuple[Handle, ...]:
    """The handles of layers that live and whose storage does, in order of opening."""
    return tuple(handle for _, handle in sorted(_handles.items()))


@atexit.register
def close_buffers() -> None:
    """Destroy all storage in order of creation; a second call finds none. Calls of layers are rejected from then on."""
    _destroy(list(_storages))


def suspend_buffers() -> None:
    """Give back, in order of creation, what all storage holds of its communicators, which are about to go."""
    for storage in _storages.values():
        if storage.group is not None:
            storage.buffer.destroy()


def resume_buffers(group_of: Callable[[ProcessGroup], ProcessGroup]) -> None:
    """Make suspended storage anew, in the same order; on all ranks together, outside of any graph.

    Args:
        group_of: the group that was -> the one in its place.
    """
    held = list(_storages.items())
    _storages.clear()
    for (name, facts, profile, backend), storage in held:
        if storage.group is not None:
            group = group_of(storage.group)
            _renew(storage.buffer, group)
            name, storage = group.group_name, replace(storage, group=group)
        _storages[name, facts, profile, backend] = storage


def _destroy(keys: list[_Key]) -> None:
    """Destroy storage and drop the handles on it."""
    for key in keys:
        buffer = _storages.pop(key).buffer
        for number, handle in list(_handles.items()):
            if handle.buffer is buffer:
                del _handles[number]
        buffer.destroy()


def _is_gone(group: ProcessGroup | None) -> bool:
    """Whether torch has destroyed the group: it no longer finds it under its name then."""
    if not isinstance(group, ProcessGroup):
        return False
    try:
        return _resolve_process_group(GroupName(group.group_name)) is not group
    except RuntimeError:
        return True


def _is_replaced(key: _Key, storage: _Storage, seat: Seat) -> bool:
    """Whether the name of the storage's group has come back with another group."""
    return seat.group is not None and key[0] == seat.group.group_name and storage.group is not seat.group


def _create(plan: LayerPlan, seat: Seat) -> SymmBuffer:
    expected = plan.buffer
    out = expected.dispatch_quant_out_dtype
    with settings(profile=plan.profile.name, topology=plan.profile.topology, backend=plan.backend):
        return get_symm_buffer_for_mega_moe(
            seat.group,
            expected.num_experts,
            expected.num_max_tokens_per_rank,
            expected.num_topk,
            expected.hidden,
            0,  # layers of other widths share the buffer
            max_recv_token_num=expected.max_recv_token_num,
            dispatch_quant_mode=expected.dispatch_quant_mode,
            dispatch_quant_out_dtype=None if out is None else AclDtype[out].code,
            combine_quant_mode=expected.combine_quant_mode,
            topk_weights_type=expected.topk_weights_type,
            combine_comm_mode=expected.combine_comm_mode,
        )


def _reject_second(layer: str, plan: LayerPlan, seat: Seat) -> None:
    """B23: two configurations on one communicator of a 950 break each other without a word."""
    others = [storage.layer for storage in _storages.values() if storage.group is seat.group is not None]
    if plan.profile.is_950 and others:
        raise ConfigError(
            f"{layer}: its operator configuration ({plan.buffer}) differs from that of {others[0]}, and "
            f"{plan.profile.name} has one buffer per communicator; expected one configuration on each. Report "
            "this model: the plan gives draft layers of another configuration a communicator of their own."
        )


def _renew(buffer: SymmBuffer, group: ProcessGroup) -> None:
    """Let a destroyed buffer live on, on `group`; on all ranks of it together.

    Whoever holds the buffer goes on to use it; a graph that was captured with it has to be captured again.

    Raises:
        OperatorError: the group's communicator cannot carry it.
    """
    said = {argument.name: getattr(buffer, argument.name) for argument in CREATE[1:]}
    made = backend_of(buffer.settings).create(CreateArguments(group=group, **said), buffer.settings)
    vars(buffer).update(vars(made))
    communicator_of(group).hand_over(made, buffer)
