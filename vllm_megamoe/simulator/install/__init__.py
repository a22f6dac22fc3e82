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

from vllm_megamoe.errors import ConfigError

NPU_VARIABLE = "VLLM_MEGAMOE_SIMULATED_NPU"
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
    wanted = name or os.environ.get(NPU_VARIABLE) or ""
    if _installed:
        if wanted not in ("", _installed[0]):
            raise ConfigError(f"{wanted!r} cannot be installed: this process simulates {_installed[0]!r} already.")
        return
    if not wanted:
        raise ConfigError(f"{NPU_VARIABLE} is unset; wanted a product and revision, such as 'a3@9.1'.")
    _refuse_real_package()
    _installed.append(wanted)
    from vllm_megamoe.simulator.install.steps import install_all

    install_all(wanted)


def _refuse_real_package() -> None:
    if "torch_npu" in sys.modules:
        origin = getattr(sys.modules["torch_npu"], "__file__", None)
    else:
        spec = importlib.util.find_spec("torch_npu")
        origin = None if spec is None else spec.origin
    if origin is not None and not str(origin).startswith(str(_ON_PATH)):
        raise ConfigError(f"{origin} is the real torch_npu; wanted a machine without one, or no simulation.")
