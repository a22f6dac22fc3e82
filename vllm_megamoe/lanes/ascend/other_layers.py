"""Layers beside the experts: vllm-ascend's own methods, and a shared MLP that the operator takes over."""

from typing import Any

from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.layer_plan import LayerPlan


def linear_method(layer: Any) -> Any:
    """vllm-ascend's method of a linear without quantisation, which it always wants one for; None for anything else."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm_ascend.ops.linear import AscendUnquantizedLinearMethod

    return AscendUnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


def spare_fused(method: Any) -> Any:
    """As it is."""
    return method


def take_shared(runner: Any, plan: LayerPlan) -> tuple[Tensor, Tensor]:
    """The shared MLP of an AscendMoERunner."""
    raise ConfigError("not yet")
