"""Kernels of an NPU on the CPU, which is where all tensors are.

What Python code registers for the NPU answers for CPU tensors; the few operators of torch_npu and vllm-ascend that one
MoE layer computes with are plain torch.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.simulator.graph import watching
from vllm_megamoe.simulator.install.torch_device import DeviceMode

_KEYS = {"PrivateUse1": "CPU"}


def implement_on_cpu() -> None:
    """Let `torch.library.Library.impl` take PrivateUse1 for CPU, and its kernels see the CPU as `npu` too."""
    original = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *rest: Any, **options: Any) -> Any:
        key = _KEYS.get(dispatch_key, dispatch_key)
        kernel = _under_mode(fn) if key == "CPU" else fn
        return original(self, op_name, kernel, key, *rest, **options)  # type: ignore[no-untyped-call]

    torch.library.Library.impl = impl  # type: ignore[method-assign]


def _under_mode(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with the mode on: torch switches a mode off while it handles the call that leads here."""

    @functools.wraps(kernel)
    def run(*arguments: Any, **options: Any) -> Any:
        with DeviceMode(), watching():
            return kernel(*arguments, **options)

    return run


_SCHEMA = (
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm, "
    "int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None) "
    "-> (Tensor y, Tensor expert_idx, Tensor out)"
)
_libraries: list[Any] = []
"""Held, because an operator goes with its library."""
SOFTMAX, SIGMOID = 0, 1
MAXIMUM, TWO_BEST = 0, 1


def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) * second half."""
    gate, up = x.chunk(2, dim=dim)
    return torch.nn.functional.silu(gate) * up


def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = MAXIMUM,
    renorm: int = 0,
    norm_type: int = SOFTMAX,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Router logits [T, E] -> weights [T, K], ids int32 [T, K], normalised scores [T, E].

    The bias chooses experts and does not weigh them. Sigmoid scores are divided by the sum of the chosen ones, softmax
    scores with `renorm` only: a softmax over the chosen logits is the same.
    """
    scores = x.float().softmax(-1) if norm_type == SOFTMAX else x.float().sigmoid()
    choice = scores if bias is None else scores + bias.float()
    if group_count > 1:
        groups = choice.view(len(x), group_count, -1)
        best = groups.topk(1 if group_select_mode == MAXIMUM else 2, dim=-1).values.sum(-1)
        open_groups = torch.zeros_like(best, dtype=torch.bool).scatter(1, best.topk(k_group, dim=-1).indices, True)
        choice = groups.masked_fill(~open_groups[:, :, None], -torch.inf).flatten(1)
    ids = choice.topk(k, dim=-1).indices
    weights = scores.gather(1, ids)
    if norm_type == SIGMOID or renorm:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    out = scores if out_flag else torch.empty_like(scores)
    return (weights * routed_scaling_factor).to(x.dtype), ids.to(torch.int32), out


_HASH_SCHEMA = (
    "moe_gating_top_k_hash(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None, Tensor? tid2eid=None, "
    "int k_group=1, int group_count=1, float routed_scaling_factor=1., float eps=1e-20, int group_select_mode=0, "
    "int renorm=0, int norm_type=2, bool out_flag=False, Tensor? bias_vl=None, int image_sentinel_lo=0, "
    "int image_sentinel_count=0) -> (Tensor y, Tensor expert_idx, Tensor out)"
)


def moe_gating_top_k_hash(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """DeepSeek-V4's router: scores sqrt(softplus(logits)), divided by the sum of the chosen ones.

    A token's experts are those of its row in a table where there is one, else the best.
    """
    del others
    scores = torch.nn.functional.softplus(x.float()).sqrt()
    choice = scores if bias is None else scores + bias.float()
    ids = choice.topk(k, dim=-1).indices if tid2eid is None else tid2eid[input_ids].long()
    weights = scores.gather(1, ids)
    weights = weights / (weights.sum(-1, keepdim=True) + eps) * routed_scaling_factor
    return weights.to(x.dtype), ids.to(torch.int32), scores


def define_ascend_operators() -> None:
    """vllm-ascend's own names of operators, in its namespace."""
    library: Any = torch.library.Library("_C_ascend", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(_SCHEMA)

    def moe_gating_top_k(
        x: Tensor,
        k: int,
        k_group: int,
        group_count: int,
        group_select_mode: int,
        renorm: int,
        norm_type: int,
        out_flag: bool,
        routed_scaling_factor: float,
        eps: float,
        bias_opt: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return npu_moe_gating_top_k(
            x,
            k,
            bias=bias_opt,
            k_group=k_group,
            group_count=group_count,
            group_select_mode=group_select_mode,
            renorm=renorm,
            norm_type=norm_type,
            out_flag=out_flag,
            routed_scaling_factor=routed_scaling_factor,
            eps=eps,
        )

    library.impl("moe_gating_top_k", moe_gating_top_k, "CPU")
    library.define(_HASH_SCHEMA)
    library.impl("moe_gating_top_k_hash", moe_gating_top_k_hash, "CPU")
    _libraries.append(library)
