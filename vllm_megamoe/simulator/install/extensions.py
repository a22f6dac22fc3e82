"""The operator's two compiled extensions, as `torch.utils.cpp_extension.load` returns them; all others are inert.

- `npu_mega_moe`: positional arguments of a revision's schema, run by the simulated device.
- `comm_context`: what a SymmBuffer of the real wrapper asks for its communicator.
"""

import weakref
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch.utils.cpp_extension
from torch import Tensor

from vllm_megamoe.numerics.activations import FLT_MAX, PARAMETERS
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.sizes.window import operator_helper
from vllm_megamoe.simulator.device import Device
from vllm_megamoe.simulator.host import OperatorArguments, check_buffer, type_name
from vllm_megamoe.simulator.kernel.run import npu_mega_moe


def make_manager(device: Device) -> type:
    """The class CommContextManager, bound to a device (op csrc, comm_context.cpp)."""

    class CommContextManager:
        """One buffer's hold on its communicator."""

        def __init__(
            self,
            group: str,
            worldSize: int,
            backend: str | Mapping[str, str] = "kfc",
            commAlg: str = "ub-mem",
            opName: str = "moe_dispatch_ffn_combine",
            customCclBufferSize: int = 0,
        ) -> None:
            self._communicator = device.communicators.named(group)
            self._expected, self._size = customCclBufferSize, 0
            self._free: Any = None
            self.topo_type = 0
            self.rank_num_per_server = worldSize

        @property
        def ccl_buffer_size(self) -> int:
            return self._size

        def create_context(self) -> Tensor:
            context, self._size, memory = self._communicator.open(self._expected)
            if memory is not None:
                self._free = weakref.finalize(self, memory.free)
            return context

        def destroy(self) -> None:
            if self._free is not None:
                self._free()

    return CommContextManager


_FIRST = (
    *("context", "x", "topk_ids", "topk_weights", "weight1", "weight2"),
    *("moe_expert_num", "ep_world_size", "ccl_buffer_size", "weight_scales1", "weight_scales2", "bias1", "bias2"),
    "x_active_mask",
)
_SHARED = (
    *("shared_weight1", "shared_weight2", "shared_weight_scales1", "shared_weight_scales2"),
    *("shared_bias1", "shared_bias2"),
)
_MIDDLE = (
    *("max_recv_token_num", "dispatch_quant_mode", "combine_quant_mode", "comm_alg", "num_max_tokens_per_rank"),
    "activation",
)
_LAST = ("dispatch_quant_out_dtype", "weight1_type", "weight2_type")
RELEASE_9_1 = (*_FIRST, *_MIDDLE, "activation_clamp", *_LAST)
HEAD = (
    *(*_FIRST, *_SHARED, *_MIDDLE, "activation_params", *_LAST),
    *("topo_type", "rank_num_per_server", "topk_weights_type"),
)
"""Argument names in the order of the schema (op wrapper mega_moe.py)."""

_SIZE_NAMES = (
    *("ep_world_size", "num_experts", "num_max_tokens_per_rank", "num_topk", "hidden", "max_recv_token_num"),
    *("dispatch_quant_mode", "dispatch_quant_out_dtype", "combine_quant_mode", "comm_alg", "topk_weights_type"),
)


class OperatorExtension:
    """What `load("npu_mega_moe")` returns.

    Args:
        device: that runs the calls.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.names = RELEASE_9_1 if device.profile.revision == "9.1" else HEAD

    def npu_mega_moe(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """One call."""
        given = dict(zip(self.names, arguments, strict=True))
        given.pop("topo_type", None)
        given.pop("rank_num_per_server", None)
        if isinstance(given.get("activation_params"), list):
            given |= _named(given["activation"], given["activation_params"])
        return npu_mega_moe(self.device.profile, OperatorArguments(**given))

    def get_mega_moe_ccl_buffer_size(self, *arguments: Any) -> int:
        """The size function: MB of one half on A2/A3, bytes on 950, after its range checks."""
        given = dict(zip(_SIZE_NAMES, arguments, strict=False))
        given["dispatch_quant_out_dtype"] = type_name(given["dispatch_quant_out_dtype"])
        facts = BufferFacts(**given)
        check_buffer(self.device.profile, facts)
        return operator_helper(self.device.profile, facts).value


def _named(activation: str, values: Sequence[float]) -> dict[str, Any]:
    """The list that the newer wrapper makes, as clamp and named parameters again."""
    named = dict(zip(PARAMETERS.get(activation, ("clamp",)), values, strict=False))
    clamp = named.pop("clamp", None)
    return {"activation_clamp": None if clamp == FLT_MAX else clamp, "activation_params": named}


class Inert(ModuleType):
    """An extension that can be loaded and not called."""

    def __getattr__(self, name: str) -> Any:
        def reject(*arguments: Any, **options: Any) -> Any:
            raise NotImplementedError(f"extension {self.__name__}: {name} is not simulated")

        return reject


def replace_load(device: Device) -> None:
    """Put the simulated extensions in place of compiled ones; call it before the operator's package is imported."""
    known: dict[str, Any] = {
        "npu_mega_moe": OperatorExtension(device),
        "comm_context": SimpleNamespace(CommContextManager=make_manager(device)),
    }

    def load(name: str, *arguments: Any, **options: Any) -> Any:
        return known.get(name) or Inert(name)

    torch.utils.cpp_extension.load = load
