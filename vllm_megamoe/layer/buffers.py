"""A handle for each layer, one SymmBuffer behind those that agree on communicator and operator configuration.

On A2/A3 every buffer of a communicator is a view of the same window; on 950 a second allocation on a communicator is
unusable (op csrc, comm_context). So storage is shared, and its owner closes it, in order of creation.
"""

import atexit
from dataclasses import dataclass

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer.rows import Seat
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, settings
from vllm_megamoe.plan.layer_plan import LayerPlan
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.use_cases import USE_CASES

_Key = tuple[str, BufferFacts, Profile, str]
_buffers: dict[_Key, SymmBuffer] = {}


@dataclass(frozen=True, slots=True)
class Handle:
    """One layer's claim on storage."""

    layer: str
    buffer: SymmBuffer


_handles: list[Handle] = []


def open_handle(layer: str, plan: LayerPlan, seat: Seat) -> Handle:
    """The buffer that this layer's calls use.

    The first layer of a configuration makes it, on all ranks of the communicator together: while weights are processed,
    so before any graph is captured.

    Raises:
        ConfigError: 950, and the communicator carries another configuration already.
    """
    name = seat.group.group_name if seat.group is not None else ""
    key = (name, plan.buffer, plan.profile, plan.backend)
    found = _buffers.get(key)
    # A group's name may come back after its group was destroyed and another engine started in this process.
    if found is None or found.group is not seat.group:
        _reject_second(layer, plan, seat)
        _buffers.pop(key, None)
        _buffers[key] = found = _create(plan, seat)
    handle = Handle(layer, found)
    _handles.append(handle)
    return handle


def _create(plan: LayerPlan, seat: Seat) -> SymmBuffer:
    expected = plan.buffer
    with settings(profile=plan.profile.name, topology=plan.profile.topology, backend=plan.backend):
        return get_symm_buffer_for_mega_moe(
            seat.group,
            expected.num_experts,
            expected.num_max_tokens_per_rank,
            expected.num_topk,
            expected.hidden,
            plan.padding.intermediate_hidden,
            max_recv_token_num=expected.max_recv_token_num,
            dispatch_quant_mode=expected.dispatch_quant_mode,
            dispatch_quant_out_dtype=USE_CASES[plan.use_case].dispatch_quant_out_dtype,
            combine_quant_mode=expected.combine_quant_mode,
            topk_weights_type=expected.topk_weights_type,
            combine_comm_mode=expected.combine_comm_mode,
        )


def _reject_second(layer: str, plan: LayerPlan, seat: Seat) -> None:
    """B23: two configurations on one communicator of a 950 break each other without a word."""
    others = [handle.layer for handle in _handles if handle.buffer.group is seat.group and seat.group is not None]
    if plan.profile.is_950 and others:
        raise ConfigError(
            f"{layer}: its operator configuration ({plan.buffer}) differs from that of {others[0]}, and "
            f"{plan.profile.name} has one buffer per communicator. Serve the draft or MTP model without "
            "--quantization megamoe, or with experts like the main model's."
        )


def handles() -> tuple[Handle, ...]:
    """All open handles, in order."""
    return tuple(_handles)


@atexit.register
def close_buffers() -> None:
    """Close every handle and destroy the storage in order of creation; a second call finds none."""
    _handles.clear()
    while _buffers:
        _buffers.pop(next(iter(_buffers))).destroy()
