"""One SymmBuffer for each communicator and operator configuration, shared by the layers that agree on it.

On A2/A3 every buffer of a communicator is a view of the same window; on 950 a second allocation on a communicator is
unusable (op csrc, comm_context). So layers hold references to one buffer, and its owner closes it.
"""

import atexit

from vllm_megamoe.method.seat import Seat
from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, settings
from vllm_megamoe.plan.plan import LayerPlan
from vllm_megamoe.profiles.use_cases import USE_CASES

_Key = tuple[str, int, int, int, int, int, int, int | None, str, str]
_buffers: dict[_Key, SymmBuffer] = {}


def buffer_for(plan: LayerPlan, seat: Seat) -> SymmBuffer:
    """The buffer that this layer's calls use; made at the first request, on all ranks of the communicator together."""
    facts, mode = plan.facts, USE_CASES[plan.use_case]
    name = seat.group.group_name if seat.group is not None else ""
    key = (
        name,
        facts.num_experts,
        plan.num_max_tokens_per_rank,
        facts.topk,
        facts.hidden,
        facts.intermediate_hidden,
        mode.dispatch_quant_mode,
        mode.dispatch_quant_out_dtype,
        plan.profile,
        plan.backend,
    )
    found = _buffers.get(key)
    # A group's name may come back after its group was destroyed and another engine started in this process.
    if found is None or found.group is not seat.group:
        with settings(profile=plan.profile, backend=plan.backend):
            found = get_symm_buffer_for_mega_moe(
                seat.group,
                facts.num_experts,
                plan.num_max_tokens_per_rank,
                facts.topk,
                facts.hidden,
                facts.intermediate_hidden,
                dispatch_quant_mode=mode.dispatch_quant_mode,
                dispatch_quant_out_dtype=mode.dispatch_quant_out_dtype,
            )
        _buffers[key] = found
    return found


@atexit.register
def close_buffers() -> None:
    """Destroy every buffer, in order of creation; a second call finds none."""
    while _buffers:
        _buffers.pop(next(iter(_buffers))).destroy()
