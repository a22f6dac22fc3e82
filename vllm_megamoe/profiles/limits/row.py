"""One row of the table: all limits of a profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vllm_megamoe.profiles.limits.cell import Cell
from vllm_megamoe.profiles.limits.numbers import Numbers
from vllm_megamoe.profiles.use_cases import UseCase

Clamp = Literal["any", "positive", "none"]
Rows = Literal["any", "alike", "full"]
Pair = tuple[str | None, str]
"""ACL names: type of the dispatched rows (None for BF16 as it is), element of the weights."""
Formats = Mapping[Pair, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one profile; I is the width after the activation, N = 2 * I that of the first weight.

    Attributes:
        ep_sizes: ranks of the communicator.
        hidden, intermediate, topk: H, I, K.
        created_hidden, created_topk, created_experts: what creation of a buffer takes of H, K and num_experts; it looks
            less closely than the call.
        max_tokens: most that num_max_tokens_per_rank may be, None for no bound.
        max_topk, max_experts, max_experts_per_rank: upper bounds; experts are routed ones.
        rows: `any` number up to num_max_tokens_per_rank, `alike` on all ranks, or `full`: num_max_tokens_per_rank.
        bounded_receive: whether max_recv_token_num may not exceed what can come.
        receive_factor_int4: how often max_recv_token_num must hold what can come with INT4 weights; 0 for no demand.
        dispatch: (dispatch_quant_mode, dispatch_quant_out_dtype) that exist.
        prequantised: whether a quantised x with scales is taken.
        use_cases: those that run.
        formats: storage formats of the two weights, by what they multiply.
        layouts: `list` of matrices, one per expert, or `stacked`.
        router_weights: element types of topk_weights.
        mask: whether x_active_mask is taken.
        activations: names.
        clamp: activation_clamp may be `any` number from 0 on, `positive`, or must be left out (`none`).
        combine_quant_modes, topk_weights_types, combine_comm_modes: values.
        max_shared_experts: 0 where there are none.
        mixed_shared: whether shared experts may have another type than the routed ones.
        many_buffers: whether a communicator can have more than one buffer.
    """

    ep_sizes: Cell[Numbers]
    hidden: Cell[Numbers]
    created_hidden: Cell[Numbers]
    intermediate: Cell[Numbers]
    topk: Cell[Numbers]
    created_topk: Cell[Numbers]
    max_topk: Cell[int]
    max_tokens: Cell[int | None]
    max_experts: Cell[int]
    created_experts: Cell[Numbers]
    max_experts_per_rank: Cell[int]
    rows: Cell[Rows]
    bounded_receive: Cell[bool]
    receive_factor_int4: Cell[int]
    dispatch: Cell[frozenset[tuple[int, str | None]]]
    prequantised: Cell[bool]
    use_cases: Cell[frozenset[UseCase]]
    formats: Cell[Formats]
    layouts: Cell[tuple[str, ...]]
    router_weights: Cell[tuple[str, ...]]
    mask: Cell[bool]
    activations: Cell[tuple[str, ...]]
    clamp: Cell[Clamp]
    combine_quant_modes: Cell[tuple[int, ...]]
    topk_weights_types: Cell[tuple[int, ...]]
    combine_comm_modes: Cell[tuple[int, ...]]
    max_shared_experts: Cell[int]
    mixed_shared: Cell[bool]
    many_buffers: Cell[bool]
