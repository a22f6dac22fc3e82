"""The package `torch_npu`: the names that are simulated, a clear answer for all others, and the backend `hccl`.

Process groups of that backend are gloo's, with the method by which HCCL names its communicators.
"""

from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import GroupName, ProcessGroup, ProcessGroupGloo

from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.device import Device
from vllm_megamoe.simulator.install.kernels import npu_moe_gating_top_k, npu_swiglu
from vllm_megamoe.simulator.npu import Formats


def register_hccl(device: Device) -> None:
    """Register the backend for devices npu and cpu."""
    # Held, so that the object which Python hands out for a backend stays the same one.
    opened: dict[Any, tuple[str, Any]] = {}

    def create(options: Any, settings: Any) -> Any:
        backend = ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)
        opened[backend] = (options.group_id, settings)
        return backend

    def get_hccl_comm_name(self: Any, rank: int, init_comm: bool = True) -> str:
        del rank
        name, settings = opened[self]
        group: ProcessGroup = torch._C._distributed_c10d._resolve_process_group(GroupName(name))
        if init_comm:
            config = getattr(settings, "hccl_config", None) or {}
            return device.communicators.make(group, config.get("hccl_buffer_size")).name
        return device.communicators.find(group).name

    ProcessGroupGloo.get_hccl_comm_name = get_hccl_comm_name  # type: ignore[attr-defined]
    dist.Backend.register_backend("hccl", create, extended_api=True, devices=["npu", "cpu"])
    dist.is_hccl_available = lambda: True  # type: ignore[attr-defined]


class Options:
    """`torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options`.

    Attributes:
        hccl_config: such as {"hccl_buffer_size": MB of one direction}.
    """

    def __init__(self, *arguments: Any) -> None:
        del arguments
        self.hccl_config: dict[str, Any] = {}


asked: set[str] = set()
"""Full names that somebody asked the package for and that nobody simulates."""


class TorchNpu(ModuleType):
    """A module; `npu_*` names that it lacks raise when they are called, names in CamelCase are empty classes."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if not name.startswith("__"):
            asked.add(full)
        if name.startswith("npu_"):
            return _rejecting(full)
        if name.lstrip("_")[:1].isupper():
            made = type(name, (), {})
            setattr(self, name, made)
            return made
        raise AttributeError(f"{self.__name__} has no {name!r} in the simulator")


def make_modules(npu: ModuleType, profile: Profile) -> dict[str, ModuleType]:
    """`torch_npu` and the modules below it, by their names in sys.modules."""
    package = TorchNpu("torch_npu", "Simulated by vllm_megamoe.simulator.")
    # vllm-ascend relies on a build that has them on: it casts and never sets the switch.
    formats = Formats(profile, allowed=True)
    npu.config = formats.config  # type: ignore[attr-defined]
    place = str(Path(__file__).parents[1] / "on_path" / "torch_npu" / "__init__.py")
    values: dict[str, Any] = {
        "__file__": place,
        "__path__": [],
        # Others look a package up before they import it.
        "__spec__": ModuleSpec("torch_npu", None, origin=place, is_package=True),
        "__version__": "0.0+simulated",
        "npu": npu,
        "npu_format_cast": formats.npu_format_cast,
        "get_npu_format": formats.get_npu_format,
        "npu_swiglu": npu_swiglu,
        "npu_moe_gating_top_k": npu_moe_gating_top_k,
        "hifloat8": torch.uint8,
        "float4_e2m1fn_x2": torch.float4_e2m1fn_x2,
        "float4_e1m2fn_x2": torch.uint8,
        "float8_e8m0fnu": torch.float8_e8m0fnu,
    }
    for name, value in values.items():
        setattr(package, name, value)
    return {
        "torch_npu": package,
        "torch_npu.npu": npu,
        **_child(package, "utils"),
        **_child(package, "utils._error_code", ErrCode=_Codes(), ops_error=_ops_error),
        **_child(package, "_C"),
        **_child(package, "_C._distributed_c10d", ProcessGroupHCCL=SimpleNamespace(Options=Options)),
        **_child(package, "profiler"),
    }


def _child(package: ModuleType, path: str, **values: Any) -> dict[str, ModuleType]:
    """A module below the package, reachable as an attribute too."""
    made = TorchNpu(f"torch_npu.{path}")
    made.__path__ = []
    made.__spec__ = ModuleSpec(made.__name__, None, is_package=True)
    for name, value in values.items():
        setattr(made, name, value)
    *parents, last = path.split(".")
    holder: Any = package
    for parent in parents:
        holder = getattr(holder, parent)
    setattr(holder, last, made)
    return {made.__name__: made}


class _Codes:
    """`ErrCode`: any name is its own code."""

    def __getattr__(self, name: str) -> str:
        return name


def _ops_error(code: Any) -> str:
    return f"[{code}]"


def _rejecting(name: str) -> Any:
    def reject(*arguments: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{name} is not simulated")

    return reject
