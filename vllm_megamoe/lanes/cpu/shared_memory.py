"""The shared memory of vLLM's groups of CPU ranks, taken off the file system as soon as all ranks have mapped it.

vLLM makes a block of /dev/shm for each rank of a group (csrc/cpu/shm.cpp) and unlinks none of them: 24 MiB a server and
start stay on the host, whichever way the server ends. A block without a name lives as long as a process maps it, so it
goes with the last rank, killed ones included.
"""

import contextlib
import os
import re
from pathlib import Path

_BLOCK = re.compile(r"\s(/dev/shm/\S*-cpushm_\d+)$", re.MULTILINE)


def unlink_groups() -> None:
    """Take the names away of all blocks of vLLM's groups that this process maps; a second call finds none.

    Called once the groups stand: each of them is made between barriers of its ranks, so all have mapped it by then.
    """
    for name in _BLOCK.findall(Path(f"/proc/{os.getpid()}/maps").read_text(encoding="utf-8", errors="replace")):
        with contextlib.suppress(FileNotFoundError):  # another rank of the group was faster
            os.unlink(name)
