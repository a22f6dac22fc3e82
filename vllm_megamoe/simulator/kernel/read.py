"""The operator's arguments as a call of the twin, misread where the product misreads them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.layout.dtypes import normalise_dtype
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.numerics.switches import Numerics
from vllm_megamoe.ops.arguments import CREATE, CreateArguments, DtypeArgument
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.given import Given, GivenWeights
from vllm_megamoe.ops.settings import Settings, active_settings
from vllm_megamoe.ops.twin.buffers import TwinBuffer
from vllm_megamoe.ops.twin.call import Call
from vllm_megamoe.ops.twin.read_call import read_call
from vllm_megamoe.ops.twin.session import Session
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.communicator import Memory, memory_at, own_address
from vllm_megamoe.simulator.deviations import Deviations, active_deviations
from vllm_megamoe.simulator.host import OperatorArguments, Tensors
from vllm_megamoe.simulator.kernel.misread import (
    as_first_entry,
    as_kernel_reads,
    device_activation,
    int32_as_blocks,
    kernel_formats,
    read_clamp,
    read_router_weights,
    read_scales,
    without_fp4,
)

_SCALE_18_BITS = ~0x3FFF & 0xFFFFFFFF


def make_twin_buffer(a: OperatorArguments, memory: Memory) -> tuple[SymmBuffer, Settings]:
    """A buffer of the twin with the attributes as they are in this call, and its settings."""
    said: dict[str, Any] = {argument.name: getattr(a, argument.schema) for argument in CREATE if argument.schema}
    said["num_max_tokens_per_rank"] = a.num_max_tokens_per_rank or a.x.shape[0]
    said |= {"num_topk": a.topk_ids.shape[-1], "hidden": a.x.shape[-1]}
    return _buffer_on(memory, said)


def _buffer_on(memory: Memory, said: dict[str, Any]) -> tuple[SymmBuffer, Settings]:
    config = _settings(active_deviations())
    arguments = CreateArguments(group=memory.group, intermediate_hidden=0, **said)
    buffer = SymmBuffer(memory.group, arguments, config)
    buffer.held = TwinBuffer(memory.number, calls_completed=memory.calls)
    return buffer, config


def refuse(context: Tensor, error: Exception) -> None:
    """Tell the other ranks of a communicator that a call does not reach this rank's device, and why.

    A device's peers would spin; here they learn why. A dead buffer has no peers.
    """
    memory = memory_at(own_address(context))
    if memory is not None and not memory.freed:
        none = dict.fromkeys(("num_experts", "num_max_tokens_per_rank", "num_topk", "hidden"), 1)
        Session(*_buffer_on(memory, none)).reject(error)


def read_arguments(a: OperatorArguments, buffer: SymmBuffer, profile: Profile) -> Call:
    """The call that the kernel makes.

    Raises:
        RuntimeError: what the twin cannot compute: the device's host checks miss some of it and read out of bounds.
    """
    if profile.name == "950@9.1":
        a = without_fp4(a)
        buffer.dispatch_quant_out_dtype = a.dispatch_quant_out_dtype
    ids = torch.where((a.topk_ids >= 0) & (a.topk_ids < a.moe_expert_num), a.topk_ids, -1)
    weights = read_router_weights(a.topk_weights, profile)
    clamp = read_clamp(a.activation, a.activation_clamp, profile)
    if profile.is_a2_a3:
        buffer.topk_weights_type = 0  # the newer revision takes the argument there and does not look at it
    try:
        l1, l2, shared1, shared2 = _weights(a, profile, active_deviations())
        given = Given(
            x=a.x,
            topk_ids=ids,
            topk_weights=weights,
            mask=a.x_active_mask,
            scales=None,
            l1=l1,
            l2=l2,
            shared_l1=shared1,
            shared_l2=shared2,
            shared_out=None,
            activation=a.activation,
            clamp=clamp,
            params=dict(a.activation_params),
        )
        call = read_call(given, buffer, buffer.settings)
    except OperatorError as e:
        raise RuntimeError(f"[{profile.name} simulated] {e}") from e
    return replace(call, activation=device_activation(call.activation, clamp, profile))


def overwrite_masked_ids(a: OperatorArguments) -> None:
    """Ids of masked rows become moe_expert_num in the caller's memory, of a strided tensor in a copy (op aclnn)."""
    if a.x_active_mask is not None and a.topk_ids.is_contiguous():
        a.topk_ids[a.x_active_mask == 0] = a.moe_expert_num


def _settings(wrong: Deviations) -> Settings:
    """A device has the kernel's roundings and no other; the caller's settings say only how long to wait."""
    numerics = Numerics(
        int4_nibbles="offset_binary" if wrong.excess8_nibbles else "twos_complement",
        fp16_overflow="saturate" if wrong.fp16_saturates else "inf",
    )
    seconds = (active_settings() or Settings(profile="none", backend="cpu")).timeout_s
    return Settings(profile="none", numerics=numerics, backend="cpu", timeout_s=seconds)


def _weights(a: OperatorArguments, profile: Profile, wrong: Deviations) -> list[GivenWeights]:
    made = []
    for name, tensors, scales, biases, declared in (
        ("l1_weights", a.weight1, a.weight_scales1, a.bias1, a.weight1_type),
        ("l2_weights", a.weight2, a.weight_scales2, a.bias2, a.weight2_type),
        ("shared_l1_weights", a.shared_weight1, a.shared_weight_scales1, None, a.weight1_type),
        ("shared_l2_weights", a.shared_weight2, a.shared_weight_scales2, None, a.weight2_type),
    ):
        if profile.is_a2_a3 and name.startswith("shared"):
            tensors = None  # the newer revision takes them there and does not look at them
        if profile.is_950:
            biases = None  # taken and not read (op tiling and kernel arch35)
        weights = list(tensors or ())
        if profile.is_a2_a3 and weights:
            weights = int32_as_blocks(as_first_entry(weights))
            scales = read_scales(scales or (), weights, declared)
        if profile.name == "950@9.2":
            weights = as_kernel_reads(weights, kernel_formats(a)["l2" in name])
        made.append(_raw(name, weights, _scales(scales if weights else None, wrong), list(biases or ()), declared))
    return made


def _raw(
    name: str, weights: Sequence[Tensor], scales: list[Tensor], biases: list[Tensor], declared: DtypeArgument
) -> GivenWeights:
    made = GivenWeights(
        name,
        [inner(tensor) for tensor in weights],
        [tuple(tensor.shape) for tensor in weights],
        [format_of(tensor) for tensor in weights],
        scales,
        biases,
        normalise_dtype(declared, name),
    )
    if weights:
        made.check_list()
    return made


def _scales(scales: Tensors, wrong: Deviations) -> list[Tensor]:
    given = list(scales or ())
    if not wrong.scale_bits_18:
        return given
    return [
        (scale.view(torch.int64) & _SCALE_18_BITS).view(scale.dtype) if scale.dtype.itemsize == 8 else scale
        for scale in given
    ]
