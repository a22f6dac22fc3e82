"""EngineFacts and MoeFacts read from live vLLM objects (vLLM 0.32)."""

from typing import Any

import torch

from vllm_megamoe.plan.facts import ActivationFacts, EngineFacts, MoeFacts
from vllm_megamoe.profiles.window_size import hccl_buffsize


def read_engine(vllm_config: Any, sequence_parallel: bool | None = None) -> EngineFacts:
    """Facts of the engine from a VllmConfig.

    Args:
        vllm_config: complete or still under construction in `check_and_update_config`.
        sequence_parallel: what a layer says of its rows, None before any layer exists.
    """
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    return EngineFacts(
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
        tensor_parallel=parallel.tensor_parallel_size,
        data_parallel=parallel.data_parallel_size,
        pipeline_parallel=parallel.pipeline_parallel_size,
        prefill_context_parallel=getattr(parallel, "prefill_context_parallel_size", 1),
        expert_parallel=parallel.enable_expert_parallel,
        sequence_parallel=sequence_parallel,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        lora=vllm_config.lora_config is not None,
        eplb=parallel.enable_eplb,
        dual_batch_overlap=parallel.enable_dbo,
        hccl_buffsize_mb=hccl_buffsize(),
    )


def read_layer(layer: Any, experts_format: str) -> MoeFacts:
    """Facts of a RoutedExperts layer under construction, before its weights exist."""
    moe = layer.moe_config
    return MoeFacts(
        name=layer.layer_name,
        num_experts=moe.num_experts,
        topk=moe.experts_per_token,
        hidden=moe.hidden_dim,
        intermediate_hidden=moe.intermediate_size,
        activation=ActivationFacts(moe.activation.value, moe.swiglu_limit),
        has_bias=moe.has_bias,
        router_weight_on_input=layer.apply_router_weight_on_input,
        skips_reduction=moe.skip_final_all_reduce,
        experts_format=experts_format,
    )


def expert_names(layer: Any) -> list[str]:
    """Names of every expert projection of a layer, as the checkpoint's config lists them."""
    projections = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
    return [
        f"{layer.layer_name}.{e}.{projection}"
        for e in range(layer.moe_config.num_logical_experts)
        for projection in projections
        if projection
    ]


def activation_dtypes() -> list[torch.dtype]:
    """All float dtypes: vLLM's own check would name one violation only, ours names all."""
    return [torch.bfloat16, torch.float32, torch.float16]
