"""SymmBuffer: the handle of a communicator that every operator call needs.

Attributes as in the operator's Python wrapper (cann_ops_transformer/ops/mega_moe.py); they are read at every call, so a
changed attribute changes the next call, as on the device.
"""

import itertools
import weakref
from typing import Any

import torch
from torch.distributed import ProcessGroup

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.settings import Settings

_handles = itertools.count(1)
_live: "weakref.WeakValueDictionary[int, SymmBuffer]" = weakref.WeakValueDictionary()


class SymmBuffer:
    """Configuration of the operator on one communicator; on the CPU it holds no memory of its own.

    Attributes:
        group: process group, None for a single rank.
        rank_id, ep_world_size, group_name: this rank's place.
        num_experts, num_max_tokens_per_rank, num_topk, hidden: as given to `get_symm_buffer_for_mega_moe`.
        intermediate_hidden: recorded only; callers pass I, 2I or 0 (operator documents and vllm-ascend differ).
        max_recv_token_num, dispatch_quant_mode, dispatch_quant_out_dtype, combine_quant_mode, comm_alg,
        topk_weights_type, combine_comm_mode: likewise.
        ccl_buffer_size, context, topo_type, rank_num_per_server: of the device; 0 and None in the twin.
        settings: those of its creation.
    """

    def __init__(self, group: ProcessGroup | None, settings: Settings, arguments: dict[str, Any]) -> None:
        self.group = group
        self.settings = settings
        self.rank_id: int = group.rank() if group is not None else 0
        self.ep_world_size: int = group.size() if group is not None else 1
        self.group_name: str = group.group_name if group is not None else ""
        self.num_experts: int = arguments["num_experts"]
        self.num_max_tokens_per_rank: int = arguments["num_max_tokens_per_rank"]
        self.num_topk: int = arguments["num_topk"]
        self.hidden: int = arguments["hidden"]
        self.intermediate_hidden: int = arguments["intermediate_hidden"]
        self.max_recv_token_num: int = arguments["max_recv_token_num"]
        self.dispatch_quant_mode: int = arguments["dispatch_quant_mode"]
        self.dispatch_quant_out_dtype: torch.dtype | int | None = arguments["dispatch_quant_out_dtype"]
        self.combine_quant_mode: int = arguments["combine_quant_mode"]
        self.comm_alg: str = arguments["comm_alg"]
        self.topk_weights_type: int = arguments["topk_weights_type"]
        self.combine_comm_mode: int = arguments["combine_comm_mode"]
        self.ccl_buffer_size = 0
        self.context: torch.Tensor | None = None
        self.topo_type = 0
        self.rank_num_per_server = self.ep_world_size
        self.calls_started = 0
        self.calls_completed = 0
        self.handle = next(_handles)
        self._destroyed = False
        _live[self.handle] = self

    def destroy(self) -> None:
        """Give the buffer back; a second call does nothing. Later operator calls on it are refused."""
        self._destroyed = True
        _live.pop(self.handle, None)

    @property
    def experts_per_rank(self) -> int:
        """Routed experts that this rank holds."""
        return self.num_experts // self.ep_world_size

    def configuration(self) -> dict[str, int | str]:
        """What all ranks of the communicator must have set alike (operator_readme.txt, constraints)."""
        names = ("num_experts", "num_max_tokens_per_rank", "num_topk", "hidden", "max_recv_token_num")
        modes = ("dispatch_quant_mode", "dispatch_quant_out_dtype", "combine_quant_mode")
        layouts = ("topk_weights_type", "combine_comm_mode")
        return {name: str(getattr(self, name)) for name in (*names, *modes, *layouts)}


def buffer_of(handle: int) -> SymmBuffer:
    """The live buffer behind a handle.

    Raises:
        OperatorError: it was destroyed, or its last reference is gone.
    """
    found = _live.get(handle)
    if found is None:
        raise OperatorError(
            "sym_buffer: this buffer was destroyed (or nothing holds it any more); "
            "keep the object that get_symm_buffer_for_mega_moe returned for as long as calls are made."
        )
    return found
