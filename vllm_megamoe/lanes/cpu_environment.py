"""What vLLM's CPU build wants in the environment before several workers can start, set where the user set nothing."""

import logging
import os
from typing import Any

logger = logging.getLogger(__name__)

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
