"""The one custom op: opaque to torch.compile, with all that depends on token count, rank or buffer inside."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_megamoe.ops.buffer import buffer_of
from vllm_megamoe.ops.twin.run import run_call

PACKED_FP4 = (torch.uint8, torch.float4_e2m1fn_x2)


@torch.library.custom_op("vllm_megamoe::mega_moe", mutates_args=("topk_ids",))
def mega_moe_op(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1: Sequence[Tensor],
    l2: Sequence[Tensor],
    shared_l1: Sequence[Tensor],
    shared_l2: Sequence[Tensor],
    l1_sf: Sequence[Tensor],
    l2_sf: Sequence[Tensor],
    l1_bias: Sequence[Tensor],
    l2_bias: Sequence[Tensor],
    shared_l1_sf: Sequence[Tensor],
    shared_l2_sf: Sequence[Tensor],
    x_active_mask: Tensor | None,
    scales: Tensor | None,
    formats: Sequence[int],
    shapes: Sequence[int],
    types: Sequence[int],
    activation: str,
    activation_clamp: float | None,
    param_keys: str,
    param_values: Sequence[float],
    handle: str,
) -> tuple[Tensor, Tensor]:
    """See `mega_moe`; weights come as stored bytes, their formats and logical shapes beside them.

    Args:
        formats: AclFormat of each weight tensor, the four lists one after the other.
        shapes: number of dimensions and dimensions of each weight tensor, in the same order.
        types: ACL dtype numbers, -1 for none: weight1, weight2, shared weight1, shared weight2, shared dispatch.
        param_keys, param_values: activation_params.
        handle: of the SymmBuffer.
    """
    return run_call(
        buffer_of(handle),
        x,
        topk_ids,
        topk_weights,
        x_active_mask,
        scales,
        ((l1, l2, l1_sf, l2_sf, l1_bias, l2_bias), (shared_l1, shared_l2, shared_l1_sf, shared_l2_sf, (), ())),
        formats,
        shapes,
        types,
        (activation, activation_clamp, dict(zip(filter(None, param_keys.split(",")), param_values, strict=True))),
    )


@mega_moe_op.register_fake
def _(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1: Sequence[Tensor],
    l2: Sequence[Tensor],
    shared_l1: Sequence[Tensor],
    shared_l2: Sequence[Tensor],
    l1_sf: Sequence[Tensor],
    l2_sf: Sequence[Tensor],
    l1_bias: Sequence[Tensor],
    l2_bias: Sequence[Tensor],
    shared_l1_sf: Sequence[Tensor],
    shared_l2_sf: Sequence[Tensor],
    x_active_mask: Tensor | None,
    scales: Tensor | None,
    formats: Sequence[int],
    shapes: Sequence[int],
    types: Sequence[int],
    activation: str,
    activation_clamp: float | None,
    param_keys: str,
    param_values: Sequence[float],
    handle: str,
) -> tuple[Tensor, Tensor]:
    hidden = x.shape[1] * 2 if x.dtype in PACKED_FP4 else x.shape[1]
    dtype = torch.float32 if x.dtype == torch.float32 else torch.bfloat16
    y = x.new_empty((x.shape[0], hidden), dtype=dtype)
    return y, x.new_empty((buffer_of(handle).experts_per_rank,), dtype=torch.int32)
