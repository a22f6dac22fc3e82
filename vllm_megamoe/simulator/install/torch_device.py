"""`torch.npu`, and the function mode that makes the device `npu` the CPU.

There is one device, whose streams and events do nothing because the CPU runs everything in order. The mode also lets a
plain parameter become a formatted one.
"""

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.formatted import FormattedTensor
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator import graph

_NPU = re.compile(r"npu(:\d+)?")
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_OPERATOR = "cann_ops_transformer::npu_mega_moe"
_PINNED = "pin_memory"  # there is one memory, and none of it is pinned


class DeviceMode(TorchFunctionMode):
    """Looks at every call of torch's functions; it is entered once and never left."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if _sets_data(func):
            return _set_data(*args)
        if func is torch.device:
            return func(*args, **kwargs or {})  # process groups look their backends up by it
        placed = {name: _to_cpu(value, name == "device") for name, value in (kwargs or {}).items() if name != _PINNED}
        moved = tuple(_to_cpu(value) for value in args)
        if _is_the_operators(func):
            # Past the formatted tensors' own dispatch, which rejects what it does not know: this operator knows blocks.
            return func.default.redispatch(_CPU, *moved, **placed)
        return func(*moved, **placed)


def _to_cpu(value: Any, is_device: bool = False) -> Any:
    """A device in any spelling -> "cpu", all else as it is; a bare number is one only as `device=`."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "npu" else value
    if isinstance(value, str) and _NPU.fullmatch(value):
        return "cpu"
    return "cpu" if is_device and isinstance(value, int) else value


def _is_the_operators(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverloadPacket) and func._qualified_op_name == _OPERATOR


def _sets_data(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__set__" and getattr(func, "__self__", None) is torch.Tensor.data


def _set_data(target: Tensor, value: Tensor) -> None:
    """`target.data = value`; a formatted value makes the target a formatted tensor, under the same name and attributes.

    Raises:
        LayoutError: something else refers to the target, so that it cannot be exchanged.
    """
    if not isinstance(value, FormattedTensor):
        torch.Tensor.data.__set__(target, value)  # type: ignore[attr-defined]
        return
    new: Tensor = value.data
    if isinstance(target, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=False)
    for name, attribute in vars(target).items():
        setattr(new, name, attribute)
    try:
        torch.utils.swap_tensors(target, new)  # type: ignore[no-untyped-call]
    except RuntimeError as e:
        raise LayoutError(
            f"data of a plain {list(target.shape)} cannot become {value!r} in place ({e}); assign a new Parameter."
        ) from e


SOC = {"a2": ("Ascend910B3", 223), "a3": ("Ascend910_9391", 253), "950": ("Ascend950", 260)}
"""Name and version of each product's processor, in the ranges by which integrations tell them apart."""

MEMORY = 64 << 30
_handles = itertools.count(1)


class Queue:
    """A stream or an event: takes every call and does nothing."""

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
        **dict.fromkeys(("Stream", "Event"), Queue),
        "NPUGraph": graph.NPUGraph,
        "graph": graph.graph,
        **dict.fromkeys(("current_stream", "default_stream"), lambda *device: current),
        **dict.fromkeys(("stream", "device", "device_of"), lambda *a, **o: contextlib.nullcontext()),
        **dict.fromkeys(("set_device", "set_stream", "empty_cache", "synchronize", "init", "manual_seed"), _nothing),
        **dict.fromkeys(("reset_peak_memory_stats", "manual_seed_all", "set_compile_mode"), _nothing),
        **dict.fromkeys(("memory_reserved", "memory_allocated", "max_memory_allocated"), lambda *device: 0),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_current_stream_capturing": graph.is_capturing,
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
