"""EngineFacts read from live vLLM objects (vLLM 0.32).

What vLLM's CPU build wants in the environment before several workers can start, set where the user set nothing.

The earliest point where vLLM shows a plugin the parallel config and the options together.

That is the platform's `check_and_update_config`, which VllmConfig calls at the end of its construction, in the process
that the user started and before any worker exists. vLLM offers no registration for it, so the method is wrapped once;
without `--quantization megamoe` the wrapper only delegates.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.platforms import current_platform

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.checkpoint.recognise import formats_of, section_of, surely_quantised
from vllm_megamoe.environment import check_environment, hccl_buffsize
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.read_config.reader import is_known, read_layers
from vllm_megamoe.plan.screen import render

logger = logging.getLogger(__name__)


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


BIND = "VLLM_CPU_OMP_THREADS_BIND"
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_DEFAULT_KV_GIB = 1


def set_cpu_defaults(parallel_config: Any) -> None:
    """Set thread binding and KV space for more than one worker on a host.

    vLLM's own default, `auto`, wants a NUMA node for each worker and asserts otherwise; without a KV size each worker
    plans with the whole host's memory.
    """
    workers = parallel_config.world_size
    replicas = max(parallel_config.data_parallel_size, 1)
    if workers * replicas < 2:
        return
    chosen = {BIND: binding(sorted(os.sched_getaffinity(0)), workers * replicas), KV_SPACE: str(_DEFAULT_KV_GIB)}
    for name, value in chosen.items():
        if not os.environ.get(name):
            os.environ[name] = value
            logger.info("megamoe: %s is unset; using %r for %d workers", name, value, workers * replicas)


def binding(cpus: list[int], workers: int) -> str:
    """One list of processors per worker in vLLM's spelling, `0,1|2,3`; too few processors are shared."""
    if len(cpus) < workers:
        return "|".join(str(cpus[w % len(cpus)]) for w in range(workers))
    each = len(cpus) // workers
    return "|".join(",".join(map(str, cpus[w * each : (w + 1) * each])) for w in range(workers))


_MARK = "_vllm_megamoe_wrapped"


def install() -> None:
    """Wrap the platform's hook; a second call does nothing."""
    platform = type(current_platform)
    original: Callable[[Any], None] = current_platform.check_and_update_config
    if getattr(platform, _MARK, False):
        return

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        if _ours(vllm_config):
            before_platform(vllm_config)
        original(vllm_config)

    platform.check_and_update_config = classmethod(check_and_update_config)
    setattr(platform, _MARK, True)


def before_platform(vllm_config: Any) -> None:
    """Plan the whole model, show the plan and prepare the environment.

    Raises:
        ConfigError: with every violated rule, before an engine process or a weight is touched.
    """
    check_environment()
    options, wrong = Options.read(vllm_config.additional_config)
    if not current_platform.is_cpu():
        wrong.append(
            f"platform: {current_platform.device_name}; expected cpu. This version has no lane for another platform "
            "yet: it would run the operator with rows that the platform has not split. Drop --quantization megamoe."
        )
    config = vllm_config.model_config.hf_config.to_dict()
    layers = read_layers(config, _format_of(config, vllm_config.quant_config.side_files))
    # A checkpoint's draft layers are loaded only where the user asked for speculation.
    served = [layer for layer in layers if not layer.draft or vllm_config.speculative_config is not None]
    plan = make_plan(read_engine(vllm_config), served, options, wrong)
    if plan.layers:
        logger.info("%s", render(plan))
    set_cpu_defaults(vllm_config.parallel_config)


def _format_of(config: Mapping[str, Any], side_files: Mapping[str, Mapping[str, Any]]) -> Callable[[str], str]:
    """The formats by name where the names are sure; else only what no naming style leaves out counts as quantised."""
    if is_known(config):
        return formats_of(config, side_files)
    text = config.get("text_config") or config
    sure = surely_quantised(section_of(config), int(text.get("num_hidden_layers") or 1), side_files)
    return lambda name: sure or BF16


def _ours(vllm_config: Any) -> bool:
    model_config = vllm_config.model_config
    return model_config is not None and model_config.quantization == "megamoe"
