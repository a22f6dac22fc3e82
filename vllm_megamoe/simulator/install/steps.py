"""The steps of an installation, in the order in which they need each other."""

import os
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from vllm_megamoe.simulator.device import device
from vllm_megamoe.simulator.install.device_mode import DeviceMode
from vllm_megamoe.simulator.install.device_module import make_npu
from vllm_megamoe.simulator.install.extensions import replace_load
from vllm_megamoe.simulator.install.hccl import register_hccl
from vllm_megamoe.simulator.install.kernels import define_ascend_operators
from vllm_megamoe.simulator.install.libraries import implement_on_cpu
from vllm_megamoe.simulator.install.package import make_modules

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
    torch.Tensor.npu = _same  # type: ignore[attr-defined]
    # vLLM counts nodes with a barrier, which asks the current accelerator.
    torch._C._get_accelerator = _cpu  # type: ignore[assignment]
    sys.modules.update(make_modules(npu))
    implement_on_cpu()
    replace_load(simulated)
    register_hccl(simulated)
    define_ascend_operators()
    _name_build(simulated.profile.product)
    DeviceMode().__enter__()  # type: ignore[no-untyped-call]


def _same(tensor: torch.Tensor, *place: object, **options: object) -> torch.Tensor:
    """`Tensor.npu()`: everything is there already."""
    del place, options
    return tensor


def _cpu(*arguments: object) -> torch.device:
    del arguments
    return torch.device("cpu")


def _name_build(product: str) -> None:
    """The module that vllm-ascend's build generates and a checkout lacks."""
    module = ModuleType("vllm_ascend._build_info")
    module.__device_type__ = ASCEND_NAMES[product]  # type: ignore[attr-defined]
    sys.modules.setdefault("vllm_ascend._build_info", module)
