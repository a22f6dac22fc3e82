"""Install a whole simulated `torch_npu` into this process, so that real Python code for NPUs runs on the CPU.

For contract tests against the operator's own wrapper and vllm-ascend; serving does not need it. It changes torch for
the whole process: devices named npu become the CPU, a process-group backend `hccl` speaks gloo, and extensions of the
operator are the simulated device.

- `install(name)` does it here.
- `path_entry()` is a folder for PYTHONPATH: with it, `import torch_npu` does it in every process, with the product that
  VLLM_MEGAMOE_SIMULATED_NPU names. vLLM looks at models in a process of its own, so an environment variable is needed.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from vllm_megamoe.environment import SIMULATED_NPU
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layout.cast import NPUS
from vllm_megamoe.simulator.device import device
from vllm_megamoe.simulator.install.extensions import replace_load
from vllm_megamoe.simulator.install.kernels import define_ascend_operators, implement_on_cpu
from vllm_megamoe.simulator.install.package import make_modules, register_hccl
from vllm_megamoe.simulator.install.torch_device import DeviceMode, make_npu

HOME_VARIABLE = "ASCEND_HOME_PATH"
ASCEND_NAMES = {"a2": "A2", "a3": "A3", "950": "A5"}
"""Products as vllm-ascend's build names them."""


def install_all(name: str) -> None:
    """Install the product of that name into this process."""
    simulated = device(name)
    # Release 9.1.0 builds paths from it at import.
    os.environ.setdefault(HOME_VARIABLE, str(Path(__file__).parent))
    rename_privateuse1_backend("npu")
    npu = make_npu(simulated.profile)
    torch._register_device_module("npu", npu)  # type: ignore[no-untyped-call]
    torch.Tensor.npu = torch.Tensor.pin_memory = _same  # type: ignore[attr-defined, method-assign, assignment]
    torch.Tensor.is_npu = property(_is_npu)  # type: ignore[attr-defined]
    # vLLM counts nodes with a barrier, which asks the current accelerator.
    torch._C._get_accelerator = _cpu  # type: ignore[assignment]
    sys.modules.update(make_modules(npu, simulated.profile))
    implement_on_cpu()
    replace_load(simulated)
    register_hccl(simulated)
    define_ascend_operators()
    _name_build(simulated.profile.product)
    NPUS.add("cpu")
    DeviceMode().__enter__()  # type: ignore[no-untyped-call]


def _same(tensor: torch.Tensor, *place: object, **options: object) -> torch.Tensor:
    """`Tensor.npu()` and `Tensor.pin_memory()`: everything is there already."""
    del place, options
    return tensor


def _is_npu(tensor: torch.Tensor) -> bool:
    """As the device says: the CPU's tensors, which all are, are none of an NPU's."""
    return tensor.device.type == "npu"


def _cpu(*arguments: object) -> torch.device:
    del arguments
    return torch.device("cpu")


def _name_build(product: str) -> None:
    """The module that vllm-ascend's build generates and a checkout lacks."""
    module = ModuleType("vllm_ascend._build_info")
    module.__device_type__ = ASCEND_NAMES[product]  # type: ignore[attr-defined]
    sys.modules.setdefault("vllm_ascend._build_info", module)


_ON_PATH = Path(__file__).parents[1] / "on_path"
_installed: list[str] = []


def path_entry() -> str:
    """The folder to put on PYTHONPATH."""
    return str(_ON_PATH)


def install(name: str | None = None) -> None:
    """Make `torch_npu` importable and `npu` a device of this process, for good; a second call does nothing.

    Args:
        name: product and revision, such as "a3@9.1"; None: VLLM_MEGAMOE_SIMULATED_NPU.

    Raises:
        ConfigError: no product was named, another one is installed, or this machine has the real torch_npu.
    """
    expected = name or SIMULATED_NPU.read() or ""
    if _installed:
        if expected not in ("", _installed[0]):
            raise ConfigError(f"{expected!r} cannot be installed: this process simulates {_installed[0]!r} already.")
        return
    if not expected:
        raise ConfigError(
            f"{SIMULATED_NPU.name} is unset; expected a product and revision. "
            f"Set it like {SIMULATED_NPU.name}={SIMULATED_NPU.example}."
        )
    _reject_real_package()
    _installed.append(expected)
    install_all(expected)


def _reject_real_package() -> None:
    if "torch_npu" in sys.modules:
        origin = getattr(sys.modules["torch_npu"], "__file__", None)
    else:
        spec = importlib.util.find_spec("torch_npu")
        origin = None if spec is None else spec.origin
    if origin is not None and not str(origin).startswith(str(_ON_PATH)):
        raise ConfigError(f"{origin} is the real torch_npu; expected a machine without one, or no simulation.")
