"""A layer's shared MLP taken over by the operator: collected whole, and off vllm-ascend's path and its side stream.

vllm-ascend keeps the MLP twice: on the runner as vLLM does, and in an AscendSharedExperts that runs it.
"""

from collections.abc import Callable
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.lanes.collected import Collected
from vllm_megamoe.lanes.shared_mlp import REMEDY, SharedMlp, give_away, take_factor
from vllm_megamoe.plan.layer_plan import LayerPlan


def take_shared(runner: Any, plan: LayerPlan, put: Callable[[Experts], None]) -> Callable[[], None]:
    """Give away the shared MLP of an AscendMoERunner: experts of the routed width, as the checkpoint has it.

    From then on the runner neither runs it nor multiplies its part of the output by the routed scaling factor
    (`plan.fold_scaling` is on the router weights instead), and the module holds no weights.

    Returns:
        See Lane.take_shared.

    Raises:
        ConfigError: the runner or its MLP is not built as in vllm-ascend 0.30.
        CheckpointError: its projections are stored in different ways, or cannot be cut to the routed width.
    """
    theirs = getattr(runner, "ascend_shared_experts", None)
    if theirs is None or runner._shared_experts is None:
        raise ConfigError(
            f"{runner.layer_name}: vllm-ascend's runner has no shared experts; the plan expected to fuse them. "
            + REMEDY
        )
    linears = theirs.layer.gate_up_proj, theirs.layer.down_proj
    if any(linear.bias is not None or not isinstance(linear.quant_method, Collected) for linear in linears):
        raise ConfigError(
            f"{runner.layer_name}: the shared experts have a bias, or their tensors were not kept as the checkpoint "
            f"has them; expected gate, up and down projections alone. {REMEDY}"
        )
    check = give_away(SharedMlp(runner.layer_name, linears, plan.shared.pieces, put))
    _detach(runner, theirs, plan.fold_scaling)
    return check


def _detach(runner: Any, theirs: Any, fold_scaling: float) -> None:
    take_factor(runner, fold_scaling)
    # With its side stream on, vllm-ascend compares the MLP in parts with the whole once weights are processed.
    theirs.validate_consistency = _nothing
    runner._shared_experts = runner.ascend_shared_experts = None
    runner.routed_experts.return_with_event = False
    runner._forward_entry = runner._select_forward()


def _nothing() -> None:
    pass
