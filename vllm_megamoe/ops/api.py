"""The two public functions, with the operator's own names, order and defaults, and the second bound to a layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.arguments import CallArguments, CreateArguments, WeightList
from vllm_megamoe.ops.backend import backend_of
from vllm_megamoe.ops.buffer import BoundCall, Held, SymmBuffer
from vllm_megamoe.ops.settings import Settings, active_settings


def get_symm_buffer_for_mega_moe(
    group: ProcessGroup | str | None,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    *,
    max_recv_token_num: int = 0,
    dispatch_quant_mode: int = 0,
    dispatch_quant_out_dtype: torch.dtype | int | None = None,
    combine_quant_mode: int = 0,
    comm_alg: str = "",
    topk_weights_type: int = 0,
    combine_comm_mode: int = 0,
) -> SymmBuffer:
    """Make the buffer that `mega_moe` needs, on every rank of the communicator with the same arguments.

    Defaults and meanings as in torch_api.txt; `topk_weights_type` and `combine_comm_mode` as in operator_readme.txt.

    Args:
        group: process group of the communicator, its name if it was made in this process, or None for a single rank.
        num_experts: routed experts of the layer over all ranks.
        num_max_tokens_per_rank: most tokens that any rank brings to a call.
        num_topk: experts per token.
        hidden: H.
        intermediate_hidden: I, 2I or 0, all of which the documents use; another number than the weights' is rejected.
        max_recv_token_num: rows that this rank can receive in a call, 0 for as many as can come. Rows beyond it are
            dropped in silence, as on A2/A3; `expert_token_nums` still counts them.
        dispatch_quant_mode: 0 none (or x is quantised already), 2 int8 per token, 4 MX groups of 32.
        dispatch_quant_out_dtype: torch dtype, torch's enum number, or ACL's number + 256.
        combine_quant_mode: 0 none, 3 MXFP8 E5M2, 4 MXFP8 E4M3.
        comm_alg: reserved, must stay "".
        topk_weights_type: 1 multiplies the router weight onto the activation, before the second GEMM.
        combine_comm_mode: 1 merges a token's rows on each card before they are sent back.

    Raises:
        OperatorError: an argument is of another kind, out of range, or none that the profile's product takes.
        ConfigError: HCCL_BUFFSIZE or another variable of the environment has a wrong value.
    """
    config = active_settings() or Settings()
    arguments = CreateArguments(
        group=group,
        num_experts=num_experts,
        num_max_tokens_per_rank=num_max_tokens_per_rank,
        num_topk=num_topk,
        hidden=hidden,
        intermediate_hidden=intermediate_hidden,
        max_recv_token_num=max_recv_token_num,
        dispatch_quant_mode=dispatch_quant_mode,
        dispatch_quant_out_dtype=dispatch_quant_out_dtype,
        combine_quant_mode=combine_quant_mode,
        comm_alg=comm_alg,
        topk_weights_type=topk_weights_type,
        combine_comm_mode=combine_comm_mode,
    )
    return backend_of(config).create(arguments, config)


def mega_moe(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1_weights: WeightList,
    l2_weights: WeightList,
    sym_buffer: SymmBuffer,
    *,
    l1_weights_sf: WeightList | None = None,
    l2_weights_sf: WeightList | None = None,
    l1_bias: WeightList | None = None,
    l2_bias: WeightList | None = None,
    x_active_mask: Tensor | None = None,
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    activation_params: Mapping[str, float] | Sequence[float] | None = None,
    weight1_type: torch.dtype | int | None = None,
    weight2_type: torch.dtype | int | None = None,
    shared_l1_weights: WeightList | None = None,
    shared_l2_weights: WeightList | None = None,
    shared_l1_weights_sf: WeightList | None = None,
    shared_l2_weights_sf: WeightList | None = None,
    shared_l1_bias: WeightList | None = None,
    shared_l2_bias: WeightList | None = None,
    scales: Tensor | None = None,
    shared_weight1_type: torch.dtype | int | None = None,
    shared_weight2_type: torch.dtype | int | None = None,
    shared_expert_quant_out_dtype: torch.dtype | int | None = None,
) -> tuple[Tensor, Tensor]:
    """One MoE layer: dispatch, both GEMMs, the activation between them, combine. Collective over the buffer's ranks.

    Letters: T tokens of this rank, K experts per token, E local experts, H hidden, I intermediate, N = 2I. Weight lists
    hold one matrix per expert, or one stack of all; all lists of a call in the same form. A16W16 and the integer use
    cases take [H, N] and [I, H], the FP ones [N, H] and [H, I] (torch_api.txt, operator_readme.txt).

    Args:
        x: bf16 [T, H]; float32 with float32 weights (twin only, no bf16 rounding); fp8 or packed fp4 with `scales`.
        topk_ids: int32 [T, K], distinct global expert ids; -1 is not sent and adds 0. With a mask and when contiguous,
            the ids of masked rows are overwritten by num_experts, as on the device.
        topk_weights: float32 (or bf16) [T, K].
        l1_weights, l2_weights: gate rows first in the first one.
        sym_buffer: of `get_symm_buffer_for_mega_moe`.
        l1_weights_sf, l2_weights_sf: uint64/int64 words [N], [H] that hold float32 bits, or E8M0 [.., ceil(K/64), 2].
        l1_bias, l2_bias: float32 [N], [H]: the compensation of A8W4-INT.
        x_active_mask: int8 [T], 0 for tokens that take no part.
        activation: swiglu, swiglustep, swigluoai or situglu.
        activation_clamp: limit of gate (above) and up (both sides); None and 0 for none.
        activation_params: alpha and beta of swigluoai, beta and linear_beta of situglu, by name as the wrapper takes
            them; or operator_readme.txt's list: [clamp], [clamp, alpha, beta], [beta] or [beta, linear_beta].
        weight1_type, weight2_type: element types that the carriers do not tell: 285 INT4 in int8, 296 FP4 in uint8.
        shared_l1_weights, ...: 0 to 4 experts that see all local tokens, unweighted, added after the routed sum.
        scales: E8M0 [T, ceil(H/32)] of an x that is quantised already.
        shared_expert_quant_out_dtype: dispatch type of the shared experts, None for that of the buffer.

    There is no gradient.

    Returns:
        y [T, H], bf16 (float32 for a float32 x), and int32 [E]: rows routed to each local expert from all ranks.

    Raises:
        OperatorError: a call that the operator rejects; the message names the argument, its value and the rule. On the
            CPU the other ranks learn of it at once.
        PeerError: another rank is missing, out of step, configured differently, or failed in its call.
    """
    if not isinstance(sym_buffer, SymmBuffer):
        raise OperatorError(
            f"mega_moe: sym_buffer is a {type(sym_buffer).__name__}; expected the SymmBuffer that "
            "vllm_megamoe.ops.get_symm_buffer_for_mega_moe returned. Make one and pass it."
        )
    arguments = CallArguments(
        x=x,
        topk_ids=topk_ids,
        topk_weights=topk_weights,
        l1_weights=l1_weights,
        l2_weights=l2_weights,
        sym_buffer=sym_buffer,
        l1_weights_sf=l1_weights_sf,
        l2_weights_sf=l2_weights_sf,
        l1_bias=l1_bias,
        l2_bias=l2_bias,
        x_active_mask=x_active_mask,
        activation=activation,
        activation_clamp=activation_clamp,
        activation_params=activation_params,
        weight1_type=weight1_type,
        weight2_type=weight2_type,
        shared_l1_weights=shared_l1_weights,
        shared_l2_weights=shared_l2_weights,
        shared_l1_weights_sf=shared_l1_weights_sf,
        shared_l2_weights_sf=shared_l2_weights_sf,
        shared_l1_bias=shared_l1_bias,
        shared_l2_bias=shared_l2_bias,
        scales=scales,
        shared_weight1_type=shared_weight1_type,
        shared_weight2_type=shared_weight2_type,
        shared_expert_quant_out_dtype=shared_expert_quant_out_dtype,
    )
    return sym_buffer.held.call(arguments)


_NO_ROWS = torch.empty(0)


def bind(sym_buffer: SymmBuffer, **constant: Any) -> BoundCall:
    """`mega_moe` made ready for one layer: all arguments but the rows are looked at once, not at every call.

        operator = bind(sym_buffer, l1_weights=..., l2_weights=..., activation=..., ...)
        y, expert_token_nums = operator(x, topk_ids, topk_weights, x_active_mask)

    The same call with the same arguments, checks included: a form of rows (types, sizes, mask or none) that came before
    under the same settings is not judged again. What may not change behind its back: the lists and tensors that were
    bound, and the buffer's attributes. A buffer that was destroyed is rejected, one that was renewed is bound anew.

    Args:
        sym_buffer: of `get_symm_buffer_for_mega_moe`.
        constant: arguments of `mega_moe`, without x, topk_ids, topk_weights, sym_buffer and x_active_mask.
    """
    rows: dict[str, Any] = {"x": _NO_ROWS, "topk_ids": _NO_ROWS, "topk_weights": _NO_ROWS}
    fixed = CallArguments(sym_buffer=sym_buffer, **rows, **constant)
    seen: Held | None = None
    run: BoundCall

    def call(
        x: Tensor, topk_ids: Tensor, topk_weights: Tensor, x_active_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        nonlocal seen, run
        held = sym_buffer.held
        if held is not seen:
            run, seen = held.bind(fixed), held
        return run(x, topk_ids, topk_weights, x_active_mask)

    return call
