"""The kernel that vLLM's runner asks about a layer, and never runs.

The runner reads from `quant_method.moe_kernel` whether the layer's output is already reduced and which dtype the router
shall give; without a kernel there it would all-reduce finished rows once more, in silence.
"""

from typing import Any, NoReturn

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular


class CompleteRows(MoEPrepareAndFinalizeNoDPEPModular):  # type: ignore[misc]
    """The operator dispatches, combines and returns complete rows: nothing is left to prepare or to finalise."""

    def output_is_reduced(self) -> bool:
        return True

    def topk_indices_dtype(self) -> torch.dtype | None:
        """The operator takes int32 ids (op csrc, "topk_ids int32")."""
        return torch.int32


class OperatorExperts(mk.FusedMoEExpertsModular):  # type: ignore[misc]
    """Stands for the operator in vLLM's questions about a layer's experts."""

    @staticmethod
    def activation_format() -> mk.FusedMoEActivationFormat:
        return mk.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return bool(activation.is_gated)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return bool(moe_parallel_config.tp_size == 1)

    def supports_expert_map(self) -> bool:
        return False

    def workspace_shapes(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("vllm_megamoe runs the operator itself; vLLM's kernel must not ask for a workspace")

    def finalize_weight_and_reduce_impl(self) -> NoReturn:
        raise NotImplementedError("vllm_megamoe's rows are finished; there is nothing to weight or reduce")

    def apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("vllm_megamoe calls the operator through its method, not through vLLM's kernel")


def make_kernel(moe: FusedMoEConfig, quant_config: FusedMoEQuantConfig) -> mk.FusedMoEKernel:
    """A kernel that answers the runner's questions for this layer."""
    return mk.FusedMoEKernel(CompleteRows(), OperatorExperts(moe, quant_config))
