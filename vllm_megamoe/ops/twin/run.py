"""The steps of a call, in order."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import active_settings
from vllm_megamoe.ops.twin.call import Call, Lists, RawCall, group_arguments
from vllm_megamoe.ops.twin.checks import check_meeting, read_call
from vllm_megamoe.ops.twin.facts import facts_of
from vllm_megamoe.ops.twin.journey import Journey
from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.ops.twin.type_codes import dtype_from


def run_call(
    buffer: SymmBuffer,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    x_active_mask: Tensor | None,
    scales: Tensor | None,
    lists: tuple[Lists, Lists],
    formats: Sequence[int],
    shapes: Sequence[int],
    types: Sequence[int],
    activation: tuple[str, float | None, Mapping[str, float]],
) -> tuple[Tensor, Tensor]:
    """Run one call; the arguments are those of `mega_moe_op`, grouped."""
    config = active_settings() or buffer.settings
    session = Session(buffer, config)
    try:
        declared = [dtype_from(code) for code in types]
        weights = group_arguments(lists, formats, shapes, declared)
        raw = RawCall(x, topk_ids, topk_weights, x_active_mask, scales, *weights, declared[4], *activation)
        call = read_call(raw, buffer, config)
        journey = Journey(call, session)
    except Exception as error:
        # The peers must not wait for a call that will not come.
        session.refuse(error)
        raise
    try:
        met = session.meet(facts_of(call), journey.routes.counts, len(x))
        # All ranks look at the same numbers here, so that all of them refuse, or none.
        check_meeting(call, met.tokens, met.received)
        total, received = journey.run(met.counts)
    except Exception:
        session.abandon()
        raise
    _overwrite_masked_ids(call)
    buffer.calls_completed += 1
    y = total if call.is_float32 else total.to(torch.bfloat16)  # R17: the one rounding of y, half even
    return y, received.to(torch.int32)


def _overwrite_masked_ids(call: Call) -> None:
    """Ids of masked rows become num_experts in the caller's memory; of a strided tensor in a copy (op aclnn)."""
    raw = call.raw
    if raw.mask is not None and raw.topk_ids.is_contiguous():
        raw.topk_ids[raw.mask == 0] = call.buffer.num_experts
