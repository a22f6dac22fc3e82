"""What several workers of vLLM's CPU build need on a host: settings that the user left out, and no shared memory left.

Its own default for thread binding, `auto`, wants a NUMA node for each worker and asserts otherwise; without a size of
the KV cache each worker plans with the whole host's memory.

It makes a block of /dev/shm for each rank of a group (csrc/cpu/shm.cpp) and unlinks none of them: 24 MiB a rank and
start stay on the host, whichever way the server ends. A block without a name lives as long as a process maps it, so it
goes with the last rank, killed ones included.
"""

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_megamoe.plan.options import Options

BIND = "VLLM_CPU_OMP_THREADS_BIND"
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
DEFAULT_KV_GIB = 1
"""GiB of KV cache for each worker: two workers beside their weights fit a laptop of 16 GB."""

_BLOCK = re.compile(r"\s(/dev/shm/\S*-cpushm_\d+)$", re.MULTILINE)

logger = logging.getLogger(__name__)


def settle(vllm_config: Any, options: Options) -> tuple[Options, list[str]]:
    """The options as given; nothing here contradicts them."""
    del vllm_config
    return options, []


def enter() -> None:
    """In every process of an engine."""
    from vllm_megamoe.lanes.cpu import gaps

    gaps.clean_new_blocks()
    _take_names_away()


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


@functools.cache
def _take_names_away() -> None:
    """Let each group lose its names once it stands: vLLM makes it between barriers of its ranks, so all map it then."""
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    _CPUSHMDistributed._init_cpu_shm = _unlinking(_CPUSHMDistributed._init_cpu_shm)


def _unlinking(make: Callable[[Any], int]) -> Callable[[Any], int]:
    @functools.wraps(make)
    def make_and_unlink(self: Any) -> int:
        handle = make(self)
        for name in _BLOCK.findall(Path(f"/proc/{os.getpid()}/maps").read_text(encoding="utf-8", errors="replace")):
            with contextlib.suppress(FileNotFoundError):  # another rank of the group was faster
                os.unlink(name)
        return handle

    return make_and_unlink
