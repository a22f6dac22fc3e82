"""Who runs the operator: the CANN package on an NPU, else the CPU twin. Resolved once, logged once.

Two backends stand side by side, `ops.cann` and `ops.twin`; neither imports the other, and only the one that is used is
imported at all. A backend creates SymmBuffers; what it keeps for each (`SymmBuffer.held`) runs the calls and gives the
memory back. The facts of a buffer and of a call, which the rules look at, are the same for both (`buffer`, `given`).
"""

import importlib.util
import logging
from functools import cache
from typing import Literal, Protocol

from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.arguments import CreateArguments
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.ops.settings import Backend as Choice
from vllm_megamoe.ops.settings import Settings

logger = logging.getLogger(__name__)

Resolved = Literal["cann", "cpu"]


class Backend(Protocol):
    """What runs the operator."""

    def create(self, arguments: CreateArguments, settings: Settings) -> SymmBuffer:
        """A buffer on the communicator of `arguments.group`, whose `held` is this backend's.

        Raises:
            OperatorError: an argument that this backend, or the profile's product, rejects.
        """


def backend_of(settings: Settings) -> Backend:
    """The backend that new buffers get; calls then follow their buffer, and nothing falls back at run time."""
    if resolve(settings.backend) == "cann":
        from vllm_megamoe.ops.cann import adapter

        return adapter
    from vllm_megamoe.ops.twin import buffers

    return buffers


@cache
def resolve(backend: Choice) -> Resolved:
    """The backend's name.

    Raises:
        OperatorError: `cann` was asked for by name on a machine that cannot run it.
    """
    simulated = simulated_profile()
    if simulated and backend != "cpu":
        logger.warning("megamoe: SIMULATING %s on the CPU, with that product's rules and its faults", simulated)
        return "cann"
    missing = _missing_for_cann() if backend != "cpu" else "backend='cpu' was chosen"
    if backend == "cann" and missing:
        raise OperatorError(f"settings(backend='cann'): {missing}; install the Ascend stack or take backend='cpu'.")
    resolved: Resolved = "cpu" if missing else "cann"
    reason = f" ({missing})" if missing else ""
    logger.info("megamoe operator backend: %s%s", resolved, reason)
    return resolved


def _missing_for_cann() -> str:
    """What this machine lacks for the CANN package, empty when nothing."""
    for package in ("torch_npu", "cann_ops_transformer"):
        if importlib.util.find_spec(package) is None:
            return f"no package {package}"
    from vllm_megamoe.ops.cann.installed import npu_is_present

    return "" if npu_is_present() else "no NPU"
