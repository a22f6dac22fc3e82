"""What a MoE layer's call does beside the operator: operations that are dispatched, and microseconds of the host.

A layer's method is called again and again with the rows of one step, in eager mode, with an operator that returns at
once. Time is CPU time of the calling thread, so that others on the machine count little. The simulated NPU looks at
every function of torch that is called, which no device does: while time is taken it does not.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CALLS, ROUNDS = 100, 15
ANSWER = "AROUND "
"""Before the JSON of a process that measures: vLLM's log goes to the same place."""


class Dispatched(TorchDispatchMode):
    """Keeps the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@dataclass
class Around:
    """What was found of one path; plain data, so that a rank can hand it on.

    Attributes:
        first: operations of a step's first layer, the operator not counted.
        later: those of its other layers.
        microseconds: of the host, for a call.
    """

    first: list[str]
    later: list[str]
    microseconds: float


def around(call: Callable[[], object]) -> dict[str, Any]:
    """Watch a call whose operator returns at once, as the fields of an Around."""
    with Dispatched() as first:
        call()
    for _ in range(CALLS):
        call()
    with Dispatched() as later:
        call()
    return vars(Around(first.names, later.names, statistics.median(_microseconds(call) for _ in range(ROUNDS))))


def _microseconds(call: Callable[[], object]) -> float:
    with torch._C.DisableTorchFunction():
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        return (time.thread_time() - start) / CALLS * 1e6
