"""EngineFacts read from live vLLM objects (vLLM 0.32).

What vLLM's CPU build wants in the environment before several workers can start, set where the user set nothing.

The earliest point where vLLM shows a plugin the parallel config and the options together.

That is the platform's `check_and_update_config`, which VllmConfig calls at the end of its construction, in the process
that the user started and before any worker exists. vLLM offers no registration for it, so the method is wrapped once;
without `--quantization megamoe` the wrapper only delegates.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from vllm.platforms import current_platform

from vllm_megamoe.environment import check_environment, hccl_buffsize
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.model import DraftModel, ModelFacts, Speculation, read_model
from vllm_megamoe.plan.options import Options
from vllm_megamoe.plan.plan import make_plan
from vllm_megamoe.plan.screen import render

logger = logging.getLogger(__name__)


def read_engine(vllm_config: Any, sequence_parallel: bool | None = None) -> EngineFacts:
    """Facts of the engine from a VllmConfig.

    Args:
        vllm_config: complete or still under construction in `check_and_update_config`.
        sequence_parallel: what a layer says of its rows; None before any layer exists, where vLLM may already say that
            none splits them (its all2all backend decides).
    """
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    together = parallel.tensor_parallel_size > 1 and parallel.data_parallel_size > 1
    if sequence_parallel is None and together and not parallel.use_sequence_parallel_moe:
        sequence_parallel = False
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
    facts = read_served(vllm_config)
    for note in facts.notes:
        logger.info("megamoe: %s", note)
    plan = make_plan(read_engine(vllm_config), facts.layers, options, wrong)
    if plan.layers:
        logger.info("%s", render(plan))
    set_cpu_defaults(vllm_config.parallel_config)


def read_served(vllm_config: Any) -> ModelFacts:
    """The model's facts as vLLM would load it, by the same reading as the command line's.

    Raises:
        ConfigError: for a value of the config that is not what its key promises.
    """
    config = vllm_config.model_config.hf_config.to_dict()
    speculative = read_speculation(vllm_config.speculative_config)
    return read_model(config, vllm_config.quant_config.side_files, speculative=speculative)


def read_speculation(config: Any) -> Speculation | None:
    """What speculation loads, from vLLM's SpeculativeConfig; None for None."""
    if config is None:
        return None
    target, draft = config.target_model_config, config.draft_model_config
    if draft is None or draft is target or draft.model in (target.model, target.model_weights):
        return Speculation(config.method)
    quantization = config.quantization or ""
    return Speculation(config.method, DraftModel(draft.model, draft.hf_config.to_dict(), {}, quantization))


def _ours(vllm_config: Any) -> bool:
    model_config = vllm_config.model_config
    return model_config is not None and model_config.quantization == "megamoe"
