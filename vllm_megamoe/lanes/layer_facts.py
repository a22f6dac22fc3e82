"""MoeFacts read from a MoE layer that vLLM has built: what the plan's facts from config.json are compared with.

The routed experts (RoutedExperts and its FusedMoEConfig) say most of it; the shared experts and a factor on the output
are those of the runner around them. vLLM 0.30 and 0.32 build both alike.
"""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase, RowParallelLinear

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import ActivationFacts, MoeFacts, SharedFacts
from vllm_megamoe.plan.read_config.reader import number_in

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

# vLLM's modules without parameters, under the names of MoEActivation. Laguna's MLP has no such module and does silu.
_PLAIN = {"SiluAndMul": "silu", "GeluAndMul": "gelu", "ReLUSquaredActivation": "relu2_no_mul", "LagunaMLP": "silu"}


def read_shared(runner: Any, experts_format: ExpertsFormat) -> SharedFacts | None:
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
            f"{runner.layer_name}: the shared experts ({type(mlp).__name__}) hold {len(down)} down projections; "
            "expected one. Serve this model without --quantization megamoe."
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


_WITH_NUMBERS = ("SiluAndMulWithClamp", "SwigluStepAndMul", "SituAndMul")


def _activation(mlp: torch.nn.Module) -> ActivationFacts:
    module: Any = getattr(mlp, "act_fn", mlp)
    # A platform's own class of an activation is one of vLLM's by descent (vllm-ascend's AscendSiluAndMul).
    names = [kind.__name__ for kind in type(module).__mro__]
    name = next((name for name in names if name in _PLAIN or name in _WITH_NUMBERS), names[0])
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


# What vLLM's operations take where the model passes nothing (layers/activation.py, fused_moe/activation.py).
_OAI_LIMIT, _OAI_ALPHA, _OAI_BETA = 7.0, 1.702, 1.0
_STEP_LIMIT = 7.0


def read_layer(
    layer: Any,
    experts_format: ExpertsFormat,
    runner: Any = None,
    shared_format: ExpertsFormat = BF16,
    text_config: Any = None,
) -> MoeFacts:
    """Facts of one MoE layer.

    Args:
        layer: a RoutedExperts, from its construction on.
        experts_format: of its weights in the checkpoint.
        runner: the MoERunner that holds it; without it there are no shared experts and no factor on the output.
        shared_format: of the shared experts in the checkpoint.
        text_config: the language model's config object, for the width of its rows and the number of its layers.
    """
    moe = layer.moe_config
    index = number_in(layer.layer_name)
    on_output = 1.0 if runner is None else float(runner.routed_scaling_factor)
    return MoeFacts(
        name=layer.layer_name,
        index=index,
        num_experts=moe.num_logical_experts,
        topk=moe.experts_per_token,
        hidden=moe.hidden_dim_unpadded,
        intermediate_hidden=moe.intermediate_size,
        activation=read_activation(moe),
        # vLLM wants rows of gate and up in turn for this activation alone.
        gate_up_interleaved=moe.activation.value == "swigluoai",
        has_bias=moe.has_bias,
        router_weight_on_input=layer.apply_router_weight_on_input,
        skips_reduction=moe.skip_final_all_reduce,
        experts_format=experts_format,
        shared=read_shared(runner, shared_format),
        routed_scaling_factor=on_output if on_output != 1.0 else float(layer.routed_scaling_factor),
        scale_on_output=on_output != 1.0,
        model_hidden=getattr(text_config, "hidden_size", moe.hidden_dim_unpadded),
        draft=layer.layer_name.startswith("mtp.") or index >= getattr(text_config, "num_hidden_layers", index + 1),
    )


def read_activation(moe: Any) -> ActivationFacts:
    """The activation of a FusedMoEConfig, with the parameters that vLLM's operation would use."""
    name, limit = moe.activation.value, moe.swiglu_limit or None
    if name == "swigluoai":
        alpha, beta = moe.swiglu_alpha, moe.swiglu_beta
        return ActivationFacts(
            name, limit or _OAI_LIMIT, _OAI_ALPHA if alpha is None else alpha, _OAI_BETA if beta is None else beta
        )
    if name == "swigluoai_uninterleave":
        # Absent factors are 1 and 0 here (vLLM 0.32, ApplyMoEActivationConfig), not those of gpt-oss.
        alpha, beta = moe.swiglu_alpha, moe.swiglu_beta
        return ActivationFacts(name, limit, 1.0 if alpha is None else alpha, 0.0 if beta is None else beta)
    if name == "swiglustep":
        return ActivationFacts(name, limit or _STEP_LIMIT)
    if name == "situ":
        return ActivationFacts(
            name, beta=moe.activation_situ_beta or 1.0, linear_beta=moe.activation_situ_linear_beta or None
        )
    return ActivationFacts(name, limit if name == "silu" else None)


def expert_names(layer: Any) -> list[str]:
    """Names of every expert projection of a layer, as the checkpoint's config lists them."""
    projections = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
    return [
        f"{layer.layer_name}.{e}.{projection}"
        for e in range(layer.moe_config.num_logical_experts)
        for projection in projections
        if projection
    ]
