"""A simulated NPU in place of a MagicMock: real layouts, real refusals.

Two ways. `hold` puts the product's `torch_npu` and `cann_ops_transformer.ops` into sys.modules for as long as a context
is open; torch itself stays as it is. `install_session` puts a whole `torch_npu` into the process, which cannot be
undone: `npu` is a device, process groups of backend `hccl` speak gloo, and programs that are started get the same.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from vllm_megamoe.environment import PRODUCTS, SIMULATED_NPU
from vllm_megamoe.errors import ConfigError

OPERATOR = "cann_ops_transformer"
_NPU_SMI = "#!/bin/sh\n# Stands for the tool of the NPU driver: there is an NPU, and it is simulated.\nexit 0\n"
_session: list[str] = []


@dataclass(frozen=True)
class Simulator:
    """What a test gets.

    Attributes:
        profile: product and operator revision, such as `a3@9.1`.
        torch_npu: the module of that name.
        ops: `cann_ops_transformer.ops`, with the signatures of that revision.
        make_communicator: as `get_hccl_comm_name` does for a process group.
        deviations: a context in which the device is wrong on purpose (docs/simulator.md).
    """

    profile: str
    torch_npu: ModuleType
    ops: ModuleType
    make_communicator: Callable[[Any], None]
    deviations: Callable[..., AbstractContextManager[Any]]


@contextmanager
def hold(profile: str) -> Iterator[Simulator]:
    """Put a product's modules in place of the real ones, and back what was there.

    Raises:
        ConfigError: no such product, or the session simulates another one.
    """
    from vllm_megamoe.simulator import deviations, device

    _reject(profile)
    simulated = device(profile)
    whole = bool(_session)
    torch_npu = sys.modules["torch_npu"] if whole else simulated.modules["torch_npu"]
    ops = simulated.modules[f"{OPERATOR}.ops"]
    before = {name: sys.modules.get(name) for name in _modules(ops)}
    if not whole:
        before["torch_npu"] = sys.modules.get("torch_npu")
        sys.modules["torch_npu"] = torch_npu
    sys.modules.update(_modules(ops))
    try:
        yield Simulator(profile, torch_npu, ops, simulated.make_communicator, deviations)
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def install_session(profile: str, tools: Path) -> None:
    """Make this process, and those that it starts, a host with NPUs.

    Args:
        profile: product and operator revision.
        tools: an empty folder for a stand-in of `npu-smi`, by which test suites tell whether there is an NPU.

    Raises:
        ConfigError: no such product, or this machine has the real torch_npu.
    """
    from vllm_megamoe.simulator import device
    from vllm_megamoe.simulator.install import install, path_entry

    _reject(profile)
    install(profile)
    _session.append(profile)
    sys.modules.update(_modules(device(profile).modules[f"{OPERATOR}.ops"]))
    tool = tools / "npu-smi"
    tool.write_text(_NPU_SMI)
    tool.chmod(0o755)
    os.environ[SIMULATED_NPU.name] = profile
    for variable, place in (("PATH", tools), ("PYTHONPATH", path_entry())):
        os.environ[variable] = os.pathsep.join(filter(None, [str(place), os.environ.get(variable)]))


def _reject(profile: str) -> None:
    if profile not in PRODUCTS:
        raise ConfigError(f"profile {profile!r}; expected one of {', '.join(PRODUCTS)}.")
    if _session and profile != _session[0]:
        raise ConfigError(
            f"{profile!r}: this session simulates {_session[0]!r}; expected the same. Run these tests in a pytest of "
            f"their own with --megamoe-simulator {profile}."
        )


def _modules(ops: ModuleType) -> dict[str, ModuleType]:
    """The operator's package as vllm-ascend looks for it: found by name, with the two modules that it imports."""
    package, context = ModuleType(OPERATOR), ModuleType(f"{OPERATOR}.ops.comm_context")
    package.__path__, ops.__path__ = [], []
    for module in (package, ops, context):
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=module is not context)

    class CommContextManager:
        """Asked to load its extension ahead of the first collective; here there is nothing to compile."""

        @classmethod
        def _ensure_loaded(cls) -> None:
            return None

    context.CommContextManager = CommContextManager  # type: ignore[attr-defined]
    package.ops, ops.comm_context = ops, context  # type: ignore[attr-defined]
    return {OPERATOR: package, ops.__name__: ops, context.__name__: context}
