"""The function mode that makes `npu` the CPU, and lets a plain parameter become a formatted one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.formatted import FormattedTensor

_NPU = re.compile(r"npu(:\d+)?")
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_OPERATOR = "cann_ops_transformer::npu_mega_moe"


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
        placed = {name: _to_cpu(value, name == "device") for name, value in (kwargs or {}).items()}
        moved = tuple(_to_cpu(value) for value in args)
        if _is_the_operators(func):
            # Past the formatted tensors' own dispatch, which refuses what it does not know: this operator knows blocks.
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
