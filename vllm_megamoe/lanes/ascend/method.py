"""The method of a MoE layer under vllm-ascend's runner, which prepares rows before it and finalises them after it."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.lanes.ascend import eplb
from vllm_megamoe.lanes.ascend.moe_rows import mask_of
from vllm_megamoe.lanes.ascend.parallel_state import told_by_all
from vllm_megamoe.lanes.moe_method import MegaMoeMethod
from vllm_megamoe.plan.layer_plan import LayerPlan, call_facts
from vllm_megamoe.plan.verdict import of_product, rejection_of
from vllm_megamoe.profiles.rules import broken_by_call

_QUANT_TYPES = {
    "msmodelslim-w8a8-dynamic": "W8A8",
    "msmodelslim-w4a8-dynamic": "W4A8",
    "msmodelslim-w4a8-dynamic-group": "W4A8",
    "msmodelslim-w8a8-mxfp8": "W8A8MXFP",
    "msmodelslim-w4a8-mxfp": "W4A8MXFP",
    "msmodelslim-w4a4-mxfp4": "W4A4MXFP",
}
"""Formats of experts whose MoE scheme vllm-ascend has, with the scheme's QuantType (quantization/methods)."""


class AscendMegaMoeMethod(MegaMoeMethod):
    """As MegaMoeMethod; its `apply` gives vllm-ascend's kind of result.

    vllm-ascend's own op around the runner hides it from torch's compiler (`vllm::moe_forward`), so none of ours is
    needed here.
    """

    @property
    def quant_method(self) -> Any:
        """What vllm-ascend's runner reads the layer's QuantType from: its shared experts choose their kernels by it."""
        from vllm_ascend.quantization.quant_type import QuantType

        return SimpleNamespace(quant_type=QuantType[_QUANT_TYPES.get(self.plan.facts.experts_format.name, "NONE")])

    def maybe_make_prepare_finalize(self, routing_tables: Any = None) -> None:
        """None: vLLM's modular kernels have no place in vllm-ascend's path (routed_experts.py)."""
        del routing_tables

    def process_weights_after_loading(self, layer: Any) -> None:
        """As MegaMoeMethod, and a look at the window that HCCL has given, on all ranks together.

        Raises:
            ConfigError: some rank's is smaller than the operator needs; raised on all, with what each rank has to say.
        """
        super().process_weights_after_loading(layer)
        self._moves_experts = eplb.is_dynamic()
        if self._moves_experts:
            eplb.teach_adaptor()
        said = told_by_all(window_problems(self.plan, layer.mega_moe_buffer.ccl_buffer_size))
        if said:
            raise rejection_of(said)

    def apply(
        self,
        layer: Any,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any,
        shared_experts_input: Tensor | None,
    ) -> Any:
        """The routed experts, and shared ones where they are fused; a FusedExpertsResult without events.

        Without events of its stages vllm-ascend runs shared experts beside the whole call (shared_experts.py,
        _wait_for_routed_stage).
        """
        self.check_loaded(layer)
        state = layer.mega_moe
        active = mask_of(layer.layer_name, x.shape[0], state.plan.capacity.rows, layer.ascend_mc2_mask)
        if topk_ids.dtype != torch.int32:
            topk_ids = topk_ids.to(torch.int32)
        if not self._moves_experts:
            return _result()(routed_out=state.run(x, topk_ids, topk_weights, active))
        before = state.counts.clone()
        y = state.run(x, topk_ids, topk_weights, active)
        # vllm-ascend adds them up; 1 says that they are counts.
        return _result()(routed_out=y, expert_tokens=state.counts - before, group_list_type=1)


@cache
def _result() -> Any:
    """vllm-ascend's class for what a layer's experts give."""
    from vllm_ascend.ops.fused_moe.moe_comm_method import FusedExpertsResult

    return FusedExpertsResult


def window_problems(plan: LayerPlan, given: int) -> list[str]:
    """Compare the window that a communicator has with what the largest call needs.

    Args:
        plan: of the layer.
        given: `ccl_buffer_size` of the operator's buffer, bytes of both halves.

    Returns:
        Nothing, or that it is too small, with the value of HCCL_BUFFSIZE that is enough.
    """
    call = replace(call_facts(plan, "bfloat16", masked=plan.profile.is_a2_a3), ccl_buffer_size=given)
    broken = broken_by_call(plan.profile, plan.buffer, call)
    return [str(of_product(plan.profile.name, rule)) for rule in broken if rule.argument == "ccl_buffer_size"]
