"""Names of activations and of their parameters, which the newer wrapper checks itself.

API of the operator source of 2026-08, after CANN 9.1.0 (op wrapper mega_moe.py).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.communicator import Communicators
from vllm_megamoe.simulator.host import OperatorArguments
from vllm_megamoe.simulator.kernel.run import npu_mega_moe
from vllm_megamoe.simulator.package.buffer import SymmBuffer, of_buffer, open_buffer

KEYS: dict[str, frozenset[str]] = {
    "swiglu": frozenset(),
    "swiglustep": frozenset(),
    "swigluoai": frozenset({"alpha", "beta"}),
    "situglu": frozenset({"beta", "linear_beta"}),
}


def check_activation(activation: str, params: Mapping[str, float] | None) -> None:
    """As the wrapper does before the extension is called.

    Raises:
        ValueError: an unknown name or key.
    """
    if activation not in KEYS:
        raise ValueError(f"Unsupported activation: {activation!r}; expected one of {sorted(KEYS)}.")
    for key in params or {}:
        if key not in KEYS[activation]:
            raise ValueError(
                f"Unknown activation param key {key!r} for activation {activation!r}; allowed keys: "
                f"{sorted(KEYS[activation])}."
            )


class Head:
    """The two functions of the newer source; their bound methods are what a caller imports.

    Args:
        profile: product.
        communicators: of this process.
    """

    def __init__(self, profile: Profile, communicators: Communicators) -> None:
        self.profile, self.communicators = profile, communicators

    def get_symm_buffer_for_mega_moe(
        self,
        group: Any,
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
    ) -> SymmBuffer:
        """A buffer on the group's communicator."""
        arguments = {
            "num_experts": num_experts,
            "num_max_tokens_per_rank": num_max_tokens_per_rank,
            "num_topk": num_topk,
            "hidden": hidden,
            "intermediate_hidden": intermediate_hidden,
            "max_recv_token_num": max_recv_token_num,
            "dispatch_quant_mode": dispatch_quant_mode,
            "dispatch_quant_out_dtype": dispatch_quant_out_dtype,
            "combine_quant_mode": combine_quant_mode,
            "comm_alg": comm_alg,
            "topk_weights_type": topk_weights_type,
            "topo_type": 0,
            "rank_num_per_server": group.size(),
        }
        return open_buffer(self.profile, self.communicators, group, arguments)

    def mega_moe(
        self,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        l1_weights: list[Tensor],
        l2_weights: list[Tensor],
        sym_buffer: SymmBuffer,
        *,
        l1_weights_sf: list[Tensor] | None = None,
        l2_weights_sf: list[Tensor] | None = None,
        l1_bias: list[Tensor] | None = None,
        l2_bias: list[Tensor] | None = None,
        x_active_mask: Tensor | None = None,
        activation: str = "swiglu",
        activation_clamp: float | None = None,
        activation_params: dict[str, float] | None = None,
        weight1_type: int | None = None,
        weight2_type: int | None = None,
        shared_l1_weights: list[Tensor] | None = None,
        shared_l2_weights: list[Tensor] | None = None,
        shared_l1_weights_sf: list[Tensor] | None = None,
        shared_l2_weights_sf: list[Tensor] | None = None,
        shared_l1_bias: list[Tensor] | None = None,
        shared_l2_bias: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One layer."""
        check_activation(activation, activation_params)
        arguments = OperatorArguments(
            x=x,
            topk_ids=topk_ids,
            topk_weights=topk_weights,
            weight1=l1_weights,
            weight2=l2_weights,
            weight_scales1=l1_weights_sf,
            weight_scales2=l2_weights_sf,
            bias1=l1_bias,
            bias2=l2_bias,
            x_active_mask=x_active_mask,
            activation=activation,
            activation_clamp=activation_clamp,
            activation_params=activation_params or {},
            weight1_type=weight1_type,
            weight2_type=weight2_type,
            shared_weight1=shared_l1_weights,
            shared_weight2=shared_l2_weights,
            shared_weight_scales1=shared_l1_weights_sf,
            shared_weight_scales2=shared_l2_weights_sf,
            shared_bias1=shared_l1_bias,
            shared_bias2=shared_l2_bias,
            topk_weights_type=sym_buffer.topk_weights_type,
            **of_buffer(sym_buffer),
        )
        return npu_mega_moe(self.profile, arguments)
