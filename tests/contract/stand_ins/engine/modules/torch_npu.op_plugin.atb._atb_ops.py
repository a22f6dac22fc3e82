"""Ascend's transformer library, the first thing that a worker imports; with it comes what else a worker asks for.

Nothing of it is looked at: norms compute what they are called, the position embedding only has to be there.
"""

from types import SimpleNamespace
from typing import Any

import torch
import torch_npu
from asked import note
from torch import Tensor
from vllm_ascend import utils

NPUS = 16
_SCHEMA = "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta, float epsilon) "
_library: Any = torch.library.Library("_C_ascend", "FRAGMENT")


def _register_atb_extensions() -> None:
    note("torch_npu.op_plugin.atb._atb_ops._register_atb_extensions()")


def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x over its root mean square, times gamma; and the reciprocal of that root."""
    note("torch_npu.npu_rms_norm()")
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    return (x.float() * scale * gamma.float()).to(x.dtype), scale


def npu_add_rms_norm_bias(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of a sum, its reciprocal root, and the sum."""
    note("torch.ops._C_ascend.npu_add_rms_norm_bias()")
    total = x1 + x2
    y, scale = npu_rms_norm(total, gamma, epsilon)
    return y if beta is None else y + beta, scale, total


def npu_mrope(positions: Tensor, query: Tensor, key: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Query and key as they are."""
    note("torch_npu.npu_mrope()")
    return query.clone(), key.clone()


def _npu_matmul_add_fp32(x: Tensor, weight: Tensor, c: Tensor) -> Tensor:
    note("torch_npu._npu_matmul_add_fp32()")
    return c.add_(x.float().t() @ weight.float())


_library.define(_SCHEMA + "-> (Tensor, Tensor, Tensor)")
_library.impl("npu_add_rms_norm_bias", npu_add_rms_norm_bias, "CPU")
for _function in (npu_rms_norm, npu_mrope, _npu_matmul_add_fp32):
    setattr(torch_npu, _function.__name__, _function)
torch.npu.device_count = lambda: NPUS
torch.accelerator.synchronize = lambda *device: None
torch.npu.memory = SimpleNamespace(NPUPluggableAllocator=type("NPUPluggableAllocator", (), {}))
# The kernels are not built: vllm-ascend has a switch for that, and finds the module that a norm imports all the same.
utils._CUSTOM_OP_ENABLED = False
