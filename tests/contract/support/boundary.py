"""What reaches the operator's package: every call of its two functions, written down as plain data.

Runs in a rank. A tensor becomes its dtype, shape, storage format and a digest of its values, so that two
paths can be compared element for element across processes without keeping the tensors.
"""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from contract.support.values import digest
from torch import Tensor, distributed

OPERATOR = "cann_ops_transformer.ops"
ND = 2
SHOWN = 32
"""Tensors of so many elements come with their values."""
CREATE, CALL = "get_symm_buffer_for_mega_moe", "mega_moe"


class Boundary:
    """Records calls from its making on; make it before vllm-ascend builds its first MoE layer.

    Attributes:
        events: one `{"call": name, "given": {...}}` a call, in order; `given` has the arguments by name, as they were
            given: defaults are left out.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._buffers: list[Any] = []
        self.operator = import_module(OPERATOR)
        for name in (CREATE, CALL):
            setattr(self.operator, name, self._watched(name, getattr(self.operator, name)))

    def since(self, start: int) -> list[dict[str, Any]]:
        """Events from number `start` on."""
        return self.events[start:]

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)  # vllm-ascend reads the signature
        def watched(*arguments: Any, **options: Any) -> Any:
            given = signature.bind(*arguments, **options).arguments
            event = {"call": name, "given": {key: self.describe(value) for key, value in given.items()}}
            self.events.append(event)
            result = original(*arguments, **options)
            if name == CREATE:
                self._buffers.append(result)
            return result

        return watched

    def describe(self, value: Any) -> Any:
        """Plain data for one argument.

        Raises:
            TypeError: a kind of value that nobody has thought of.
        """
        if isinstance(value, Tensor):
            return describe_tensor(value)
        if isinstance(value, (list, tuple)):
            return [self.describe(each) for each in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, dict):
            return {key: self.describe(each) for key, each in value.items()}
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, distributed.ProcessGroup):
            return {"group": value.group_name, "ranks": distributed.get_process_group_ranks(value)}
        for number, buffer in enumerate(self._buffers):
            if value is buffer:
                return {"buffer": number, "modes": _modes(buffer)}
        raise TypeError(f"the boundary cannot describe {type(value).__name__}: {value!r}")


def _modes(buffer: Any) -> dict[str, Any]:
    """Attributes that the wrapper reads at every call, and that vllm-ascend writes between calls."""
    names = ("dispatch_quant_mode", "dispatch_quant_out_dtype", "max_recv_token_num", "num_max_tokens_per_rank")
    return {name: getattr(buffer, name) for name in names}


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """dtype, shape, format number of torch_npu, and the first 16 digits of a SHA-256 over the values in plain order."""
    torch_npu = import_module("torch_npu")
    # Steps run in inference mode, in which a formatted tensor cannot be cast back.
    with torch.inference_mode(False), torch.no_grad():
        plain = torch_npu.npu_format_cast(tensor, ND)
        values = {"values": plain.tolist()} if tensor.numel() <= SHOWN else {}
        value_digest = digest(plain)
    return values | {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "format": int(torch_npu.get_npu_format(tensor)),
        "contiguous": tensor.is_contiguous(),
        "digest": value_digest,
    }
