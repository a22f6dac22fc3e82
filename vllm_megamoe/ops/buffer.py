"""SymmBuffer: the configuration of the operator on one communicator, which every call needs.

Attributes as in the operator's Python wrapper (op wrapper mega_moe.py). They are read at every call, so a
changed attribute changes the next call, as on the device.
"""

import itertools
import weakref

import torch
from torch.distributed import ProcessGroup

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.profiles.facts import BufferFacts

_numbers = itertools.count(1)
_live: "weakref.WeakValueDictionary[str, SymmBuffer]" = weakref.WeakValueDictionary()


class SymmBuffer:
    """What `get_symm_buffer_for_mega_moe` returns; on the CPU it holds no memory of its own.

    Attributes:
        group: process group, None for a single rank.
        rank_id, ep_world_size, group_name: this rank's place.
        num_experts, num_max_tokens_per_rank, num_topk, hidden: as given.
        intermediate_hidden: recorded only; callers pass I, 2I or 0 (torch_api.txt examples).
        max_recv_token_num, dispatch_quant_mode, dispatch_quant_out_dtype, combine_quant_mode, comm_alg,
        topk_weights_type, combine_comm_mode: as given.
        ccl_buffer_size: bytes of the window that the profile's product would have; 0 in profile `none`.
        context, topo_type, rank_num_per_server: of the device; None, 0 (1 with topology `urma`) and all ranks here.
        settings: those of its creation; a call outside of a `settings(...)` block follows them.
        calls_completed, number, old_slots: the twin's own: calls so far, place among the group's buffers in order of
            creation, and what landed in earlier calls where numerics.stale_slots is `old`.
        created, siblings: configuration at its creation, and the live buffers of its communicator by number.
        handle: name under which the custom op finds this object again.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        *,
        settings: Settings,
        max_recv_token_num: int = 0,
        dispatch_quant_mode: int = 0,
        dispatch_quant_out_dtype: torch.dtype | int | None = None,
        combine_quant_mode: int = 0,
        comm_alg: str = "",
        topk_weights_type: int = 0,
        combine_comm_mode: int = 0,
    ) -> None:
        self.group = group
        self.rank_id: int = group.rank() if group is not None else 0
        self.ep_world_size: int = group.size() if group is not None else 1
        self.group_name: str = group.group_name if group is not None else ""
        self.num_experts = num_experts
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_topk = num_topk
        self.hidden = hidden
        self.intermediate_hidden = intermediate_hidden
        self.max_recv_token_num = max_recv_token_num
        self.dispatch_quant_mode = dispatch_quant_mode
        self.dispatch_quant_out_dtype = dispatch_quant_out_dtype
        self.combine_quant_mode = combine_quant_mode
        self.comm_alg = comm_alg
        self.topk_weights_type = topk_weights_type
        self.combine_comm_mode = combine_comm_mode
        self.ccl_buffer_size = 0
        self.context: torch.Tensor | None = None
        self.topo_type = int(settings.found_profile.topology == "urma")
        self.rank_num_per_server = self.ep_world_size
        self.settings = settings
        self.calls_completed = 0
        self.number = 1
        self.old_slots: torch.Tensor | None = None
        self.created: BufferFacts | None = None
        self.siblings: weakref.WeakValueDictionary[int, SymmBuffer] = weakref.WeakValueDictionary()
        # A string, because torch.compile would turn an int that differs between layers into a symbol.
        self.handle = f"buffer {next(_numbers)}"
        _live[self.handle] = self

    def __repr__(self) -> str:
        return (
            f"SymmBuffer(rank {self.rank_id} of {self.ep_world_size}, num_experts={self.num_experts}, "
            f"hidden={self.hidden}, num_topk={self.num_topk}, "
            f"num_max_tokens_per_rank={self.num_max_tokens_per_rank}, dispatch_quant_mode={self.dispatch_quant_mode})"
        )

    @property
    def experts_per_rank(self) -> int:
        """Routed experts that this rank holds."""
        return self.num_experts // self.ep_world_size

    def oldest_facts(self) -> BufferFacts | None:
        """Configuration of the communicator's oldest live buffer at its creation, None when there is none."""
        return self.siblings[min(self.siblings)].created if self.siblings else None

    def destroy(self) -> None:
        """Give the buffer back; a second call does nothing. Later operator calls with it are rejected."""
        self.old_slots = None
        if self.siblings.get(self.number) is self:
            del self.siblings[self.number]
        _live.pop(self.handle, None)


def buffer_of(handle: str) -> SymmBuffer:
    """The live buffer behind a handle.

    Raises:
        OperatorError: it was destroyed, or its last reference is gone.
    """
    found = _live.get(handle)
    if found is None:
        raise OperatorError(
            f"sym_buffer: {handle} was destroyed, or nothing holds it any more; keep the object that "
            "get_symm_buffer_for_mega_moe returned, undestroyed, for as long as calls are made."
        )
    return found
