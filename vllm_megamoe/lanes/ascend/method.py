"""The method of a MoE layer under vllm-ascend's runner, which prepares rows before it and finalises them after it."""

from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.lanes.ascend.moe_rows import check_rows
from vllm_megamoe.lanes.moe_method import MegaMoeMethod


class AscendMegaMoeMethod(MegaMoeMethod):
    """As MegaMoeMethod; its `apply` gives vllm-ascend's kind of result.

    vllm-ascend's own op around the runner hides it from torch's compiler (`vllm::moe_forward`), so none of ours is
    needed here.
    """

    def maybe_make_prepare_finalize(self, routing_tables: Any = None) -> None:
        """None: vLLM's modular kernels have no place in vllm-ascend's path (routed_experts.py)."""
        del routing_tables

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
        from vllm_ascend.ops.fused_moe.moe_comm_method import FusedExpertsResult

        active = check_rows(layer.layer_name, x, layer.ascend_mc2_mask)
        y = layer.mega_moe.run(x, topk_ids.to(torch.int32), topk_weights, active)
        return FusedExpertsResult(routed_out=y)
