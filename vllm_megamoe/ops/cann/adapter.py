"""Thin adapter to `cann_ops_transformer.ops`: passes on what the installed revision takes, rejects the rest by name.

The public arguments are those of the newest revision. Older ones lack some; an argument they lack is left out while it
has its default, since that is what they do anyway.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vllm_megamoe.environment import simulated_profile
from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.cann.judge import check_call, checked_creation, remember

if TYPE_CHECKING:
    from vllm_megamoe.simulator.device import Device

PACKAGE = "cann_ops_transformer.ops"
FP4_CODE = 296
"""The wrapper knows no torch dtype for packed FP4; ACL's number + 256 works (op csrc, GetAclDataType)."""

_LISTS = (
    "l1_weights_sf",
    "l2_weights_sf",
    "l1_bias",
    "l2_bias",
    "shared_l1_weights",
    "shared_l2_weights",
    "shared_l1_weights_sf",
    "shared_l2_weights_sf",
    "shared_l1_bias",
    "shared_l2_bias",
)
_DEFAULTS: dict[str, Any] = {
    "max_recv_token_num": 0,
    "dispatch_quant_mode": 0,
    "combine_quant_mode": 0,
    "comm_alg": "",
    "topk_weights_type": 0,
    "combine_comm_mode": 0,
    "activation": "swiglu",
}
"""Defaults that are not None (torch_api.txt, operator_readme.txt)."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The operator of this machine.

    Attributes:
        create, run: its two functions.
        create_names, run_names: the keywords they take.
    """

    create: Callable[..., Any]
    run: Callable[..., Any]
    create_names: frozenset[str]
    run_names: frozenset[str]


@cache
def installed() -> Installed:
    """Import the operator; its extension may be compiled at this point."""
    # Loaded first: the operator's tensors and process groups are torch_npu's.
    _module("torch_npu")
    ops = _module(PACKAGE)
    create, run = ops.get_symm_buffer_for_mega_moe, ops.mega_moe
    return Installed(create, run, _keywords(create), _keywords(run))


def npu_is_present() -> bool:
    """Whether torch_npu finds a device."""
    torch_npu = importlib.import_module("torch_npu")
    return bool(torch_npu.npu.is_available())


def create_buffer(group: Any, sizes: tuple[int, ...], arguments: Mapping[str, Any]) -> Any:
    """The operator's own SymmBuffer.

    Raises:
        OperatorError: no group, or an argument that this revision does not have.
    """
    if group is None or isinstance(group, str):
        raise OperatorError(
            f"get_symm_buffer_for_mega_moe: group={group!r}; expected the torch.distributed process group (backend "
            "hccl) of the communicator. A single NPU needs a group too; for one process without NPU take "
            "settings(backend='cpu')."
        )
    given = dict(arguments)
    given["dispatch_quant_out_dtype"] = _out_dtype(given["dispatch_quant_out_dtype"])
    expected = _sayable("get_symm_buffer_for_mega_moe", given, installed().create_names)
    with checked_creation(group, sizes, given):
        make_communicator(group)
        return remember(installed().create(group, *sizes, **expected))


def make_communicator(group: Any) -> None:
    """Make sure that HCCL has the group's communicator: the operator looks it up but does not create it."""
    simulated = simulated_profile()
    if simulated:
        _device(simulated).make_communicator(group)
        return
    rank = torch.distributed.get_rank(group)
    group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)


def call(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    l1_weights: Any,
    l2_weights: Any,
    sym_buffer: Any,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Run the operator of this machine.

    Raises:
        OperatorError: a foreign sym_buffer, or an argument that this revision does not have.
    """
    if not hasattr(sym_buffer, "ccl_buffer_size"):
        raise OperatorError(
            f"mega_moe: sym_buffer is a {type(sym_buffer).__name__}; expected that of get_symm_buffer_for_mega_moe."
        )
    given = {name: _as_list(value) if name in _LISTS else value for name, value in arguments.items()}
    l1, l2 = _as_list(l1_weights), _as_list(l2_weights)
    check_call(x, topk_weights, (l1, l2), sym_buffer, given)
    expected = _sayable("mega_moe", _without_repeats(given, installed().run_names), installed().run_names)
    y, counts = installed().run(x, topk_ids, topk_weights, l1, l2, sym_buffer, **expected)
    return y, counts


def _device(name: str) -> "Device":
    # Loaded only where it is used: it stands on the twin, which stands on this package.
    from vllm_megamoe.simulator.device import device

    return device(name)


def _module(name: str) -> ModuleType:
    """The installed package, or its simulated counterpart."""
    simulated = simulated_profile()
    return _device(simulated).modules[name] if simulated else importlib.import_module(name)


def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _sayable(function: str, arguments: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """The arguments that the revision takes; others must have their defaults."""
    lacking = [name for name, value in arguments.items() if name not in names and not _is_default(name, value)]
    if lacking:
        values = ", ".join(f"{name}={_shown(arguments[name])}" for name in lacking)
        raise OperatorError(
            f"{function}: {values}; expected the default, because {PACKAGE}.{function} of this installation has no "
            f"such argument (it has {', '.join(sorted(names))}). Install a newer operator package, or leave it out."
        )
    return {name: value for name, value in arguments.items() if name in names}


def _without_repeats(arguments: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Leave out types of shared weights that only repeat the routed ones', where the revision cannot say them.

    It then takes weight1_type and weight2_type for both (op csrc of 2026-08; op tiling arch35 wants them equal).
    """
    repeats = {f"shared_{name}" for name in ("weight1_type", "weight2_type")}
    return {
        name: None if name in repeats - names and value == arguments.get(name.removeprefix("shared_")) else value
        for name, value in arguments.items()
    }


def _is_default(name: str, value: Any) -> bool:
    default = _DEFAULTS.get(name)
    return value is None or (default is not None and value == default)


def _shown(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)


def _as_list(value: Any) -> Any:
    """The operator takes lists only; one stack is a list of one."""
    return [value] if isinstance(value, Tensor) else value


def _out_dtype(value: Any) -> Any:
    """A spelling that the wrapper's table knows: bf16 is None there, packed FP4 a number."""
    if value is torch.bfloat16:
        return None
    return FP4_CODE if value is torch.float4_e2m1fn_x2 else value
