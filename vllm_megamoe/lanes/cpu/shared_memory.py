"""The shared memory of vLLM's groups of CPU ranks, taken off the file system as soon as all ranks have mapped it.

vLLM makes a block of /dev/shm for each rank of a group (csrc/cpu/shm.cpp) and unlinks none of them: 24 MiB a rank and
start stay on the host, whichever way the server ends. A block without a name lives as long as a process maps it, so it
goes with the last rank, killed ones included.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"\s(/dev/shm/\S*-cpushm_\d+)$", re.MULTILINE)


@functools.cache
def take_names_away() -> None:
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
