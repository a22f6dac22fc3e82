"""EngineFacts read from live vLLM objects (vLLM 0.32)."""

from typing import Any

import torch

from vllm_megamoe.plan.facts import EngineFacts
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


def activation_dtypes() -> list[torch.dtype]:
    """All float dtypes: vLLM's own check would name one violation only, ours names all."""
    return [torch.bfloat16, torch.float32, torch.float16]
