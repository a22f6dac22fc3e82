"""SymmBuffer: the configuration of the operator on one communicator, which every call needs.

Attributes as in the operator's Python wrapper (op wrapper mega_moe.py). They are read at every call, so a changed
attribute changes the next call, as on the device. What a backend keeps for a buffer is the backend's own: `held`.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.layout.dtypes import normalise_dtype
from vllm_megamoe.ops.arguments import CREATE, CallArguments, CreateArguments, DtypeArgument
from vllm_megamoe.ops.rejection import is_capturing, raise_broken, rejection
from vllm_megamoe.ops.settings import Settings
from vllm_megamoe.profiles.facts import BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer

BoundCall = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""x, topk_ids, topk_weights, x_active_mask -> y, expert_token_nums."""


class Held(Protocol):
    """What a backend keeps for one buffer, and what it does with it."""

    def call(self, arguments: CallArguments) -> tuple[Tensor, Tensor]:
        """Run `mega_moe` on this buffer, with its attributes as they are now."""

    def bind(self, fixed: CallArguments) -> BoundCall:
        """As `call`, for many that differ in their rows alone (`ops.api.bind`); rows and mask of `fixed` are empty."""

    def destroy(self) -> None:
        """Give back what the buffer holds."""


class SymmBuffer:
    """What `get_symm_buffer_for_mega_moe` returns.

    Attributes:
        group: process group, None for a single rank.
        rank_id, ep_world_size, group_name: this rank's place.
        num_experts, num_max_tokens_per_rank, num_topk, hidden, max_recv_token_num, dispatch_quant_mode,
        dispatch_quant_out_dtype, combine_quant_mode, comm_alg, topk_weights_type, combine_comm_mode: as given.
        intermediate_hidden: as given: 0, I or 2I (torch_api.txt examples); the operator computes with the weights' own.
        ccl_buffer_size: bytes of the window: on a device its own, on the CPU what the profile's product would have, 0
            in profile `none`.
        context, topo_type, rank_num_per_server: of the device; on the CPU None, 0 (1 with topology `urma`), all ranks.
        settings: those of its creation; a call outside of a `settings(...)` block follows them.
        held: the backend's own, nobody else's business.
    """

    num_experts: int
    num_max_tokens_per_rank: int
    num_topk: int
    hidden: int
    intermediate_hidden: int
    max_recv_token_num: int
    dispatch_quant_mode: int
    dispatch_quant_out_dtype: DtypeArgument
    combine_quant_mode: int
    comm_alg: str
    topk_weights_type: int
    combine_comm_mode: int
    held: Held

    def __init__(self, group: ProcessGroup | None, arguments: CreateArguments, settings: Settings) -> None:
        self.group = group
        self.rank_id: int = group.rank() if group is not None else 0
        self.ep_world_size: int = group.size() if group is not None else 1
        self.group_name: str = group.group_name if group is not None else ""
        for argument in CREATE[1:]:
            setattr(self, argument.name, getattr(arguments, argument.name))
        self.ccl_buffer_size = 0
        self.context: torch.Tensor | None = None
        self.topo_type = int(settings.found_profile.topology == "urma")
        self.rank_num_per_server = self.ep_world_size
        self.settings = settings

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

    def destroy(self) -> None:
        """Give the buffer back; a second call does nothing. Later operator calls with it are rejected."""
        communicator_of(self.group).drop(self)
        self.held.destroy()


class Communicator:
    """The buffers of one process group in this process, in order of creation.

    Attributes:
        made: buffers made so far, destroyed ones included.
    """

    def __init__(self) -> None:
        self.made = 0
        self._live: dict[int, tuple[weakref.ref[SymmBuffer], BufferFacts]] = {}

    def add(self, buffer: SymmBuffer, facts: BufferFacts) -> int:
        """Note a buffer with its configuration at creation; returns its number, from 1 on."""
        self.made += 1
        self._live[self.made] = (weakref.ref(buffer), facts)
        return self.made

    def drop(self, buffer: SymmBuffer) -> None:
        """A destroyed buffer is in nobody's way."""
        self._live = {number: held for number, held in self._live.items() if held[0]() is not buffer}

    def hand_over(self, made: SymmBuffer, heir: SymmBuffer) -> None:
        """Put one buffer in another's place, which nobody uses."""
        for number, (held, facts) in self._live.items():
            if held() is made:
                self._live[number] = (weakref.ref(heir), facts)

    def oldest(self) -> BufferFacts | None:
        """Configuration of the oldest buffer that somebody still holds, as it was created; None when there is none."""
        self._live = {number: held for number, held in self._live.items() if held[0]() is not None}
        return self._live[min(self._live)][1] if self._live else None

    def number_of(self, buffer: SymmBuffer) -> int:
        """A buffer's place in the order of creation, from 1 on; 0 for one that was destroyed or is being made."""
        return next((number for number, (held, _) in self._live.items() if held() is buffer), 0)


_communicators: "weakref.WeakKeyDictionary[Any, Communicator]" = weakref.WeakKeyDictionary()


def communicator_of(group: Any) -> Communicator:
    """The one of a process group; a single rank's buffers share nothing, so each has its own."""
    return Communicator() if group is None else _communicators.setdefault(group, Communicator())


def buffer_facts(buffer: SymmBuffer, *, new: bool = False) -> BufferFacts:
    """The buffer as the rules see it, with its attributes as they are now.

    Args:
        buffer: whose attributes are of the right kinds (`arguments.check_create`).
        new: whether it is being made: a call may stand in a captured graph, the creation may not.
    """
    communicator = communicator_of(buffer.group)
    out = normalise_dtype(buffer.dispatch_quant_out_dtype, "dispatch_quant_out_dtype")
    return BufferFacts(
        ep_world_size=buffer.ep_world_size,
        num_experts=buffer.num_experts,
        num_max_tokens_per_rank=buffer.num_max_tokens_per_rank,
        num_topk=buffer.num_topk,
        hidden=buffer.hidden,
        max_recv_token_num=buffer.max_recv_token_num,
        dispatch_quant_mode=buffer.dispatch_quant_mode,
        dispatch_quant_out_dtype=None if out is None else out.name,
        combine_quant_mode=buffer.combine_quant_mode,
        comm_alg=buffer.comm_alg,
        topk_weights_type=buffer.topk_weights_type,
        combine_comm_mode=buffer.combine_comm_mode,
        rank_num_per_server=buffer.rank_num_per_server,
        buffers_before=communicator.made if new else max(communicator.number_of(buffer) - 1, 0),
        capturing=new and is_capturing(),
        earlier=communicator.oldest(),
    )


WRAPPERS_DTYPES = (torch.int8, torch.float8_e5m2, torch.float8_e4m3fn)
"""What the wrapper's table of output types has (torch_api.txt; op wrapper mega_moe.py, _TORCH_DTYPE_TO_INT)."""


def check_new(buffer: SymmBuffer, profile: Profile) -> BufferFacts:
    """Reject a buffer that the profile's product does not make; returns its facts.

    Raises:
        OperatorError: naming argument, value, rule, source and remedy.
    """
    facts = buffer_facts(buffer, new=True)
    if profile.product == "none":
        return facts
    broken = broken_by_buffer(profile, facts)
    if broken and facts.earlier is not None:
        # An error's traceback holds the frames of the failed call, and they its buffer, though nobody uses it any more.
        gc.collect()
        facts = buffer_facts(buffer, new=True)
        broken = broken_by_buffer(profile, facts)
    raise_broken(broken)
    out = buffer.dispatch_quant_out_dtype
    if isinstance(out, torch.dtype) and out not in WRAPPERS_DTYPES:
        rule = f"{', '.join(map(str, WRAPPERS_DTYPES))}, None or a number with profile {profile.name}"
        source = "torch_api.txt and op wrapper mega_moe.py, _TORCH_DTYPE_TO_INT"
        remedy = f"Pass None for BF16 rows, {AclDtype.FLOAT4_E2M1.code} for packed FP4."
        raise rejection("dispatch_quant_out_dtype", out, rule, source, remedy)
    return facts
