"""A layer's shared MLP inside vLLM: kept as loaded, handed over whole, and taken off the runner's own path.

vLLM's CPU linears pack their weights for the processor's matrix units and empty the parameter while weights are
processed, and a shared MLP comes before its routed experts; so the linears of a fused MLP must be left alone.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.model_executor.layers.linear import (
    LinearBase,
    MergedColumnParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.lanes.moe_method import MegaMoeMethod
from vllm_megamoe.plan.layer_plan import LayerPlan

Process = Callable[[torch.nn.Module], None]

_REMEDY = 'Set "fuse_shared_experts": "off" in the megamoe options.'


def linear_method(layer: Any) -> Any:
    """vLLM's method of a linear without quantisation; None for anything else."""
    return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def spare_fused(method: Any) -> Any:
    """Make an unquantised linear's method leave the weights as loaded when they belong to a fused MLP.

    The method's class stays: vLLM chooses the weight loader by its name. Called while the model is built.
    """
    if not isinstance(method, UnquantizedLinearMethod):
        return method
    layers = get_current_vllm_config().compilation_config.static_forward_context
    process = method.process_weights_after_loading
    method.process_weights_after_loading = partial(_process_unless_fused, process, layers)
    return method


def _process_unless_fused(process: Process, layers: Mapping[str, Any], linear: torch.nn.Module) -> None:
    fused = (_mlp(layer) for layer in layers.values() if _fuses(layer))
    if not any(linear is part for mlp in fused for part in mlp.modules()):
        process(linear)


def _fuses(layer: Any) -> bool:
    """Whether this is a runner whose shared experts the plan fuses; attention layers stand among the runners."""
    if getattr(layer, "_shared_experts", None) is None:
        return False
    method = layer.routed_experts.quant_method
    return isinstance(method, MegaMoeMethod) and method.complete_plan().shared.mode == "fused"


def _mlp(runner: Any) -> torch.nn.Module:
    mlp: torch.nn.Module = runner._shared_experts._layer
    return mlp


def take_shared(runner: Any, plan: LayerPlan) -> tuple[Tensor, Tensor]:
    """The shared MLP of a MoERunner, w13 [2S, H] gate rows first and w2 [H, S], whole on every rank.

    From then on vLLM's runner neither runs it nor multiplies its part of the output by the routed scaling factor
    (`plan.fold_scaling` is on the router weights instead), and the module holds no weights.

    Raises:
        ConfigError: the runner or its MLP is not built as in vLLM 0.30 and 0.32.
    """
    layer_name = runner.layer_name
    if getattr(runner, "_shared_experts", None) is None:
        raise ConfigError(
            f"{layer_name}: vLLM's runner has no shared experts, the plan expected to fuse them. {_REMEDY}"
        )
    gate_up, down = (_only(runner, layer_name, kind) for kind in (MergedColumnParallelLinear, RowParallelLinear))
    weights = _whole_gate_up(gate_up), _whole_down(down)
    for linear in (gate_up, down):
        linear.weight = torch.nn.Parameter(torch.empty(0, dtype=linear.weight.dtype), requires_grad=False)
    _detach(runner, layer_name, plan.fold_scaling)
    return weights


def _only(runner: Any, layer_name: str, kind: type) -> Any:
    """The MLP's one linear of a kind, with its weight as loaded and no bias."""
    found = [part for part in _mlp(runner).modules() if isinstance(part, kind)]
    if len(found) != 1 or found[0].bias is not None or found[0].weight.dim() != 2:
        raise ConfigError(
            f"{layer_name}: the shared experts hold {len(found)} {kind.__name__}; expected one, without bias and with "
            f"its weight as loaded. {_REMEDY}"
        )
    return found[0]


def _whole_gate_up(linear: Any) -> Tensor:
    """Each rank's shard is [gate rows, up rows]; the whole has all gate rows first."""
    weight: Tensor = linear.weight.data
    if linear.tp_size == 1:
        return weight
    shards: Tensor = tensor_model_parallel_all_gather(weight, dim=0).view(linear.tp_size, 2, -1, weight.shape[1])
    return shards.transpose(0, 1).reshape(-1, weight.shape[1])


def _whole_down(linear: Any) -> Tensor:
    weight: Tensor = linear.weight.data
    if linear.tp_size == 1:
        return weight
    whole: Tensor = tensor_model_parallel_all_gather(weight.contiguous(), dim=1)
    return whole


def _detach(runner: Any, layer_name: str, fold_scaling: float) -> None:
    if runner.routed_scaling_factor != fold_scaling:
        raise ConfigError(
            f"{layer_name}: vLLM's runner multiplies the output by {runner.routed_scaling_factor:g}, the plan expected "
            f"{fold_scaling:g} to move onto the router weights. {_REMEDY}"
        )
    runner.routed_scaling_factor = 1.0
    runner._shared_experts = None
    runner._forward_entry = runner._select_forward()
