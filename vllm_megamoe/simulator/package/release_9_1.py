"""API of CANN 9.1.0 (torch_api.txt; branch 9.1.0, op wrapper mega_moe.py)."""

from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.communicator import Communicators
from vllm_megamoe.simulator.host import OperatorArguments
from vllm_megamoe.simulator.kernel.run import npu_mega_moe
from vllm_megamoe.simulator.package.buffer import SymmBuffer, of_buffer, open_buffer


class Release:
    """The two functions of CANN 9.1.0; their bound methods are what a caller imports.

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
        weight1_type: int | None = None,
        weight2_type: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One layer."""
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
            weight1_type=weight1_type,
            weight2_type=weight2_type,
            **of_buffer(sym_buffer),
        )
        return npu_mega_moe(self.profile, arguments)
