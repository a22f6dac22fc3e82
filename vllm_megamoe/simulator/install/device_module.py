"""`torch.npu`: one device, whose streams and events do nothing because the CPU runs everything in order."""

import contextlib
import itertools
from types import ModuleType
from typing import Any

from vllm_megamoe.profiles.profile import Profile

SOC = {"a2": ("Ascend910B3", 223), "a3": ("Ascend910_9391", 253), "950": ("Ascend950", 260)}
"""Name and version of each product's processor, in the ranges by which integrations tell them apart."""

MEMORY = 64 << 30
_handles = itertools.count(1)


class Queue:
    """A stream, an event or a graph: takes every call and does nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        del arguments, options
        self.npu_stream = self.stream_id = 0

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *reason: Any) -> None:
        return None

    def query(self) -> bool:
        """Everything is done."""
        return True

    def elapsed_time(self, end: "Queue") -> float:
        """Milliseconds; none pass."""
        del end
        return 0.0

    def record_event(self, event: "Queue | None" = None) -> "Queue":
        """The event."""
        return event or Queue()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing


class Npu(ModuleType):
    """The module; names in CamelCase that it lacks are empty classes."""

    def __getattr__(self, name: str) -> Any:
        if name[:1].isupper():
            made = type(name, (), {})
            setattr(self, name, made)
            return made
        raise AttributeError(f"torch.npu has no {name!r} in the simulator")


def make_npu(profile: Profile) -> ModuleType:
    """The module for a product."""
    npu = Npu("torch.npu", "Simulated by vllm_megamoe.simulator.")
    current = Queue()
    name, version = SOC[profile.product]
    values: dict[str, Any] = {
        **dict.fromkeys(("Stream", "Event", "NPUGraph"), Queue),
        **dict.fromkeys(("current_stream", "default_stream"), lambda *device: current),
        **dict.fromkeys(("stream", "graph", "device", "device_of"), lambda *a, **o: contextlib.nullcontext()),
        **dict.fromkeys(("set_device", "set_stream", "empty_cache", "synchronize", "init", "manual_seed"), _nothing),
        **dict.fromkeys(("reset_peak_memory_stats", "manual_seed_all", "set_compile_mode"), _nothing),
        **dict.fromkeys(("memory_reserved", "memory_allocated", "max_memory_allocated"), lambda *device: 0),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "memory_stats": lambda *device: {},
        "mem_get_info": lambda *device: (MEMORY, MEMORY),
        "get_device_name": lambda *device: name,
        "get_soc_version": lambda: version,
        "graph_pool_handle": lambda: (0, next(_handles)),
        "get_amp_supported_dtype": list,
    }
    for key, value in values.items():
        setattr(npu, key, value)
    return npu


def _nothing(*arguments: Any, **options: Any) -> None:
    del arguments, options
