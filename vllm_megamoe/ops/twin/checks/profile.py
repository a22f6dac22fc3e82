"""The one place where a product's limits enter: facts out of a buffer and a call, and the first broken rule raised."""

import torch

from vllm_megamoe.environment import hccl_buffsize
from vllm_megamoe.layout.dtypes import normalise_dtype
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.rejection import is_capturing, rejection, type_name
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.ops.twin.call import Call, Experts, RawWeights
from vllm_megamoe.profiles.facts import Broken, BufferFacts, CallFacts, WeightFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call
from vllm_megamoe.profiles.sizes.window import ccl_buffer_size

_MIB = 1 << 20


def raise_broken(broken: list[Broken]) -> None:
    """Reject the first broken rule, and name the arguments of the others.

    Raises:
        OperatorError: any is broken.
    """
    if not broken:
        return
    first = broken[0]
    text = first.remedy
    if first.silent:
        text += f" The device would not reject: {first.silent}."
    if len(broken) > 1:
        text += f" Also rejected: {', '.join(f'{b.argument}={b.value}' for b in broken[1:])}."
    raise rejection(first.argument, first.value, first.expected, first.source, text)


def check_buffer_profile(buffer: SymmBuffer, config: Settings) -> None:
    """Reject what creation of the buffer breaks, with its attributes as they are now.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    profile = config.found_profile
    if profile.product != "none":
        raise_broken(broken_by_buffer(profile, buffer_facts(buffer)))


def check_call_profile(call: Call) -> None:
    """Reject what a call breaks, as far as this rank can see alone.

    Raises:
        OperatorError: see `check_buffer_profile`.
    """
    profile = call.config.found_profile
    if profile.product != "none":
        raise_broken(broken_by_call(profile, buffer_facts(call.buffer), call_facts(call)))


def check_meeting(call: Call, tokens: tuple[int, ...], received: tuple[int, ...]) -> None:
    """Reject what only all ranks together show: other token counts than the other ranks', more rows than fit.

    Args:
        call: checked as far as this rank can see alone.
        tokens, received: of every rank, the same on all of them.

    Raises:
        OperatorError: on every rank alike.
    """
    profile = call.config.found_profile
    if profile.product != "none":
        facts = call_facts(call, tokens, received)
        raise_broken(broken_by_call(profile, buffer_facts(call.buffer), facts))


def buffer_facts(buffer: SymmBuffer) -> BufferFacts:
    """The buffer as plain values, its dispatch_quant_out_dtype in whatever spelling."""
    out = normalise_dtype(buffer.dispatch_quant_out_dtype, "dispatch_quant_out_dtype")
    return BufferFacts(
        ep_world_size=buffer.ep_world_size,
        num_experts=buffer.num_experts,
        num_max_tokens_per_rank=buffer.num_max_tokens_per_rank,
        num_topk=buffer.num_topk,
        hidden=buffer.hidden,
        max_recv_token_num=buffer.max_recv_token_num,
        dispatch_quant_mode=buffer.dispatch_quant_mode,
        dispatch_quant_out_dtype=None if out is None else out.name,
        combine_quant_mode=buffer.combine_quant_mode,
        comm_alg=buffer.comm_alg,
        topk_weights_type=buffer.topk_weights_type,
        combine_comm_mode=buffer.combine_comm_mode,
        rank_num_per_server=buffer.rank_num_per_server,
        buffers_before=buffer.number - 1,
        # A call may stand in a graph, the creation may not.
        capturing=buffer.created is None and is_capturing(),
        earlier=buffer.oldest_facts(),
    )


def call_facts(call: Call, rows: tuple[int, ...] = (), received: tuple[int, ...] = ()) -> CallFacts:
    """The call as plain values.

    Args:
        call: checked without a profile.
        rows, received: what the ranks told each other, empty before they have met.
    """
    raw = call.raw
    return CallFacts(
        rows=raw.x.shape[0],
        x_dtype=type_name(raw.x.dtype),
        topk_weights_dtype=type_name(raw.topk_weights.dtype),
        has_mask=raw.mask is not None,
        has_scales=raw.scales is not None,
        routed=_weight_facts(call.routed, raw.l1),
        shared=None if call.shared is None else _weight_facts(call.shared, raw.shared_l1),
        shared_out_dtype=None if raw.shared_out is None else raw.shared_out.name,
        activation=raw.activation,
        activation_clamp=raw.clamp,
        activation_params=raw.params,
        ccl_buffer_size=_window_of(call),
        rows_of_ranks=rows,
        received_rows=received,
    )


def _window_of(call: Call) -> int:
    """The buffer's window; of a buffer that was made without a profile, what the call's product would have given it."""
    buffer, profile = call.buffer, call.config.found_profile
    return buffer.ccl_buffer_size or window_bytes(profile, buffer.created or buffer_facts(buffer))


def window_bytes(profile: Profile, buffer: BufferFacts) -> int:
    """What `SymmBuffer.ccl_buffer_size` says: HCCL's window on A2/A3, the buffer's own memory on 950, 0 in `none`.

    Raises:
        ConfigError: HCCL_BUFFSIZE is no number of MB.
    """
    if not profile.is_a2_a3:
        return ccl_buffer_size(profile, buffer)
    # HCCL allocates one half for each direction and reports the sum (torch_api.txt:381).
    return 2 * _MIB * hccl_buffsize()


def _weight_facts(experts: Experts, raw: RawWeights) -> WeightFacts:
    l1, l2 = experts.l1, experts.l2
    return WeightFacts(
        element1=l1.element.name,
        element2=l2.element.name,
        carrier="INT32" if raw.tensors[0].dtype == torch.int32 else l1.element.name,
        format1=l1.acl_format.name,
        format2=l2.acl_format.name,
        stacked=raw.is_stacked,
        count=l1.count,
        intermediate_hidden=l2.inputs,
        has_scales=bool(l1.scales) and bool(l2.scales),
        has_bias=bool(l1.biases) and bool(l2.biases),
    )
