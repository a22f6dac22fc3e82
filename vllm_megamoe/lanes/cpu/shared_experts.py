"""A layer's shared MLP inside vLLM: collected whole, handed over as the checkpoint has it, and off the runner's path.

Its linears are of the kind that collects a checkpoint's tensors (`lanes.collected`): where the plan fuses the MLP
they keep what arrives instead of handing it to vLLM, so that every rank has all of it, in its own type.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import Experts
from vllm_megamoe.lanes.collected import Collected
from vllm_megamoe.lanes.moe_method import MegaMoeMethod
from vllm_megamoe.lanes.shared_mlp import REMEDY, SharedMlp, give_away, take_factor
from vllm_megamoe.plan.layer_plan import LayerPlan


def is_fused(layers: Mapping[str, Any], linear: torch.nn.Module) -> bool:
    """Whether a linear belongs to a shared MLP that the operator runs.

    Args:
        layers: the model's runners among its attention layers, by name; complete once the model is built.
    """
    return any(linear is part for layer in layers.values() if _fuses(layer) for part in _mlp(layer).modules())


def _fuses(layer: Any) -> bool:
    """Whether this is a runner whose shared experts the plan fuses."""
    if getattr(layer, "_shared_experts", None) is None:
        return False
    method = layer.routed_experts.quant_method
    return isinstance(method, MegaMoeMethod) and method.complete_plan().shared.mode == "fused"


def _mlp(runner: Any) -> torch.nn.Module:
    mlp: torch.nn.Module = runner._shared_experts._layer
    return mlp


def take_shared(runner: Any, plan: LayerPlan, put: Callable[[Experts], None]) -> Callable[[], None]:
    """Give away a MoERunner's shared MLP: experts of the routed width, whole on every rank, as the checkpoint has it.

    From then on vLLM's runner neither runs it nor multiplies its part of the output by the routed scaling factor
    (`plan.fold_scaling` is on the router weights instead), and the module holds no weights.

    Args:
        runner: of the layer.
        plan: of the layer.
        put: takes the experts, now and whenever the MLP is loaded again.

    Returns:
        What to call before a step: it raises CheckpointError where the MLP was loaded again in part.

    Raises:
        ConfigError: the runner or its MLP is not built as in vLLM 0.30 and 0.32.
        CheckpointError: its projections are stored in different ways, or cannot be cut to the routed width.
    """
    layer_name = runner.layer_name
    if getattr(runner, "_shared_experts", None) is None:
        raise ConfigError(
            f"{layer_name}: vLLM's runner has no shared experts, the plan expected to fuse them. {REMEDY}"
        )
    linears = [_only(runner, layer_name, kind) for kind in (MergedColumnParallelLinear, RowParallelLinear)]
    check = give_away(SharedMlp(layer_name, linears, plan.shared.pieces, put))
    _detach(runner, plan.fold_scaling)
    return check


def _only(runner: Any, layer_name: str, kind: type) -> Any:
    """The MLP's one linear of a kind, which has collected its tensors and has no bias."""
    found = [part for part in _mlp(runner).modules() if isinstance(part, kind)]
    if len(found) != 1 or found[0].bias is not None or not isinstance(found[0].quant_method, Collected):
        raise ConfigError(
            f"{layer_name}: the shared experts hold {len(found)} {kind.__name__}; expected one, without bias, whose "
            f"tensors were kept as the checkpoint has them. {REMEDY}"
        )
    return found[0]


def _detach(runner: Any, fold_scaling: float) -> None:
    take_factor(runner, fold_scaling)
    runner._shared_experts = None
    runner._forward_entry = runner._select_forward()
