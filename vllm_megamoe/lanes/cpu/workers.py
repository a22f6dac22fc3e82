"""What vLLM's CPU build expects in the environment before several workers start, set where the user set nothing.

Its own default for thread binding, `auto`, wants a NUMA node for each worker and asserts otherwise; without a size of
the KV cache each worker plans with the whole host's memory.
"""

import logging
import os
from typing import Any

from vllm_megamoe.plan.options import Options

BIND = "VLLM_CPU_OMP_THREADS_BIND"
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
DEFAULT_KV_GIB = 1
"""GiB of KV cache for each worker: two workers beside their weights fit a laptop of 16 GB."""

logger = logging.getLogger(__name__)


def settle(vllm_config: Any, options: Options) -> tuple[Options, list[str]]:
    """The options as given; nothing here contradicts them."""
    del vllm_config
    return options, []


def enter() -> None:
    """In every process of an engine."""
    from vllm_megamoe.lanes.cpu import gaps, shared_memory

    gaps.clean_new_blocks()
    shared_memory.take_names_away()


def start(vllm_config: Any) -> None:
    """In a worker, before its first layer is built."""
    # Imported here: the user's process prepares an environment and builds no layer.
    from vllm_megamoe.lanes.cpu import gaps, load_again

    gaps.start(vllm_config)
    load_again.install()


def prepare(vllm_config: Any) -> None:
    """Set thread binding and KV space for more than one worker on a host."""
    parallel = vllm_config.parallel_config
    workers = parallel.world_size * max(parallel.data_parallel_size, 1)
    if workers < 2:
        return
    chosen = {BIND: binding(sorted(os.sched_getaffinity(0)), workers), KV_SPACE: str(DEFAULT_KV_GIB)}
    for name, value in chosen.items():
        if not os.environ.get(name):
            os.environ[name] = value
            logger.info("megamoe: %s is unset; using %r for %d workers", name, value, workers)


def binding(cpus: list[int], workers: int) -> str:
    """One list of processors per worker in vLLM's spelling, `0,1|2,3`; too few processors are shared."""
    if len(cpus) < workers:
        return "|".join(str(cpus[w % len(cpus)]) for w in range(workers))
    each = len(cpus) // workers
    return "|".join(",".join(map(str, cpus[w * each : (w + 1) * each])) for w in range(workers))
