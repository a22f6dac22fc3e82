"""SharedFacts read from the shared MLP that a live MoERunner holds (vLLM 0.32)."""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase, RowParallelLinear

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import ActivationFacts, SharedFacts

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

# vLLM's modules without parameters, under the names of MoEActivation. Laguna's MLP has no such module and does silu.
_PLAIN = {"SiluAndMul": "silu", "GeluAndMul": "gelu", "ReLUSquaredActivation": "relu2_no_mul", "LagunaMLP": "silu"}


def read_shared(runner: Any, experts_format: str) -> SharedFacts | None:
    """Facts of the runner's shared MLP; None for a layer without, or without a runner yet.

    Raises:
        ConfigError: an MLP without exactly one linear that is split by rows, as each of vLLM's has.
    """
    mlp = shared_mlp(runner)
    if mlp is None:
        return None
    down = [part for part in mlp.modules() if isinstance(part, RowParallelLinear)]
    if len(down) != 1:
        raise ConfigError(
            f"{runner.layer_name}: the shared experts ({type(mlp).__name__}) hold {len(down)} down projections; wanted "
            "one. Serve this model without --quantization megamoe."
        )
    # A gate per token is a linear with one output.
    gated = any(isinstance(part, LinearBase) and part.output_size == 1 for part in mlp.modules())
    return SharedFacts(down[0].input_size, down[0].output_size, _activation(mlp), gated, experts_format)


def shared_mlp(runner: Any) -> torch.nn.Module | None:
    """The module inside the runner's wrapper, None where there is none."""
    wrapper = getattr(runner, "_shared_experts", None)
    return None if wrapper is None else wrapper._layer


def shared_names(runner: Any) -> list[str]:
    """Names of the shared MLP's projections, as a checkpoint lists them; empty for a layer without."""
    mlp = shared_mlp(runner)
    if mlp is None:
        return []
    prefixes = [part.prefix for part in mlp.modules() if isinstance(part, RowParallelLinear)]
    home = prefixes[0].rpartition(".")[0] if prefixes else ""
    return [f"{home}.{projection}" for projection in PROJECTIONS]


def _activation(mlp: torch.nn.Module) -> ActivationFacts:
    module: Any = getattr(mlp, "act_fn", mlp)
    name = type(module).__name__
    if name in _PLAIN:
        return ActivationFacts(_PLAIN[name])
    if name == "SiluAndMulWithClamp":
        if (module.alpha, module.beta) == (1.0, 0.0):
            return ActivationFacts("silu", module.swiglu_limit)
        return ActivationFacts("swigluoai_uninterleave", module.swiglu_limit, module.alpha, module.beta)
    if name == "SwigluStepAndMul":
        return ActivationFacts("swiglustep", module.limit)
    if name == "SituAndMul":
        return ActivationFacts("situ", beta=module.beta, linear_beta=module.linear_beta)
    return ActivationFacts(name)
