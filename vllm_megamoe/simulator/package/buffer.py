"""Functions as the modules that callers import them from.

The wrapper's SymmBuffer (op wrapper mega_moe.py): plain attributes, read at every call.
"""

import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.distributed import ProcessGroup

from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.sizes.window import operator_helper
from vllm_megamoe.simulator.communicator import Communicators, Memory
from vllm_megamoe.simulator.host import check_buffer, type_name


def as_module(create: Callable[..., Any], run: Callable[..., Any]) -> ModuleType:
    """The two functions as the package's module."""
    ops = ModuleType("cann_ops_transformer.ops", "Simulated by vllm_megamoe.simulator.")
    for function in (create, run):
        setattr(ops, function.__name__, function)
    return ops


_OUT_DTYPES = (torch.float8_e5m2, torch.float8_e4m3fn, torch.int8)


class SymmBuffer:
    """What `get_symm_buffer_for_mega_moe` returns on a device.

    Attributes:
        context, ccl_buffer_size: of the communicator; bytes.
        topk_weights_type, topo_type, rank_num_per_server: of the newer revision only.
        The others as given.
    """

    context: torch.Tensor
    ccl_buffer_size: int

    def __init__(self, group: ProcessGroup, name: str, arguments: Mapping[str, Any]) -> None:
        self.group = group
        self.rank_id: int = group.rank()
        self.group_name = name
        self.ep_world_size: int = group.size()
        self._memory: Memory | None = None
        for name, value in arguments.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # Only for names that `arguments` set: tells the type checker that they exist.
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def take(self, context: torch.Tensor, ccl_bytes: int, memory: Memory | None) -> None:
        """What the communicator gave; a buffer that nobody holds any more frees its memory (op ~CommContextManager)."""
        self.context, self.ccl_buffer_size, self._memory = context, ccl_bytes, memory
        if memory is not None:
            weakref.finalize(self, memory.free)

    def destroy(self) -> None:
        """Frees the memory on 950; does nothing on A2/A3."""
        if self._memory is not None:
            self._memory.free()


def open_buffer(
    profile: Profile, communicators: Communicators, group: ProcessGroup, arguments: Mapping[str, Any]
) -> SymmBuffer:
    """Create a buffer as the wrapper's constructor does.

    Raises:
        RuntimeError: no communicator, or a value that the size function rejects.
        TypeError: an out dtype that the wrapper does not know.
    """
    communicator = communicators.find(group)
    _check_out_dtype(arguments["dispatch_quant_out_dtype"])
    facts = BufferFacts(
        ep_world_size=group.size(),
        num_experts=arguments["num_experts"],
        num_max_tokens_per_rank=arguments["num_max_tokens_per_rank"],
        num_topk=arguments["num_topk"],
        hidden=arguments["hidden"],
        max_recv_token_num=arguments["max_recv_token_num"],
        dispatch_quant_mode=arguments["dispatch_quant_mode"],
        dispatch_quant_out_dtype=type_name(arguments["dispatch_quant_out_dtype"]),
        combine_quant_mode=arguments["combine_quant_mode"],
        comm_alg=arguments["comm_alg"],
        topk_weights_type=arguments.get("topk_weights_type", 0),
        rank_num_per_server=group.size(),
    )
    check_buffer(profile, facts)
    buffer = SymmBuffer(group, communicator.name, arguments)
    expected = operator_helper(profile, facts).value if profile.is_950 else 0
    buffer.take(*communicator.open(expected))
    return buffer


def of_buffer(buffer: SymmBuffer) -> dict[str, Any]:
    """The arguments that a call takes from its buffer, as they are now."""
    return {
        "context": buffer.context,
        "moe_expert_num": buffer.num_experts,
        "ep_world_size": buffer.ep_world_size,
        "ccl_buffer_size": buffer.ccl_buffer_size,
        "max_recv_token_num": buffer.max_recv_token_num,
        "dispatch_quant_mode": buffer.dispatch_quant_mode,
        "combine_quant_mode": buffer.combine_quant_mode,
        "comm_alg": buffer.comm_alg,
        "num_max_tokens_per_rank": buffer.num_max_tokens_per_rank,
        "dispatch_quant_out_dtype": buffer.dispatch_quant_out_dtype,
    }


def _check_out_dtype(value: Any) -> None:
    """The wrapper's own table; a number passes."""
    if value is None or isinstance(value, int):
        return
    if not isinstance(value, torch.dtype):
        raise TypeError(f"dispatch_quant_out_dtype must be torch.dtype or int, got {type(value)}.")
    if value not in _OUT_DTYPES:
        raise TypeError(f"Unsupported dispatch_quant_out_dtype: {value}.")
