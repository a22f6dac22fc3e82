"""HCCL communicators: one a process group, with the window that it owns, and the context that tells a kernel of both.

- `Memory`: what rows of other ranks land in, found by its address as the kernel finds it. It is never cleared between
  calls: what nobody wrote in this call is what an earlier call left, of whichever buffer.
- The context tensor (op struct CommContext), int32 [4100]: u32 rank, u32 ranks per server, u64 context address,
  u64 [1024] windows, u64 [1024] handles.
"""

import itertools
import weakref

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from vllm_megamoe.environment import hccl_buffsize
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.simulator.deviations import active_deviations

WORDS = 4100
_WINDOWS_AT = 4


def make_context(rank: int, ranks: int, address: int) -> Tensor:
    """A context whose own window is at `address`."""
    context = no_context()
    context[0], context[1] = rank, ranks
    own = _WINDOWS_AT + 2 * rank
    context[own : own + 2] = torch.tensor([address], dtype=torch.int64).view(torch.int32)
    return context


def no_context() -> Tensor:
    """All zero: what a second buffer on a 950 communicator gets."""
    return torch.zeros(WORDS, dtype=torch.int32)


def own_address(context: Tensor) -> int:
    """Address of the own window, 0 in an all-zero context."""
    own = _WINDOWS_AT + 2 * int(context[0])
    return int(context[own : own + 2].clone().view(torch.int64))


_ALIGNMENT = 1 << 21
_numbers = itertools.count(1)
_at: "weakref.WeakValueDictionary[int, Memory]" = weakref.WeakValueDictionary()


class Memory:
    """A window of a communicator (A2/A3) or an allocation of its own (950).

    Args:
        group: whose ranks write into it.
        number: of this memory among the group's, equal on all ranks.
        fill: byte that it holds before anything is written; 0xFF makes NaN of every float type.

    Attributes:
        address: as the context tensor holds it.
        calls: completed calls on it.
        freed: whether it was given back.
    """

    def __init__(self, group: ProcessGroup, number: int, fill: int) -> None:
        self.group, self.number, self.fill = group, number, fill
        self.address = next(_numbers) * _ALIGNMENT
        self.calls = 0
        self.freed = False
        self._bytes = torch.empty(0, dtype=torch.uint8)
        _at[self.address] = self

    def area(self, start: int, stop: int) -> Tensor:
        """uint8 [stop - start], a view that can be read and written."""
        if stop > len(self._bytes):
            grown = torch.full((stop,), self.fill, dtype=torch.uint8)
            grown[: len(self._bytes)] = self._bytes
            self._bytes = grown
        return self._bytes[start:stop]

    def free(self) -> None:
        """Give it back; its address stays known, so that a later use can be named."""
        self.freed = True
        self._bytes = torch.empty(0, dtype=torch.uint8)


def memory_at(address: int) -> Memory | None:
    """The memory at an address, None for an address that was never given out."""
    return _at.get(address)


MIB = 1 << 20
_UNTOUCHED, _CLEARED = 0xFF, 0


class Communicator:
    """One group's communicator on one product.

    Args:
        name: of the communicator.
        group: of the ranks.
        profile: product and revision.
        buffsize_mb: size of one direction, HCCL_BUFFSIZE where None.

    Attributes:
        window_bytes: what HCCL reports for the window, both directions.
        window: the memory that all buffers of the communicator share on A2/A3.
        own: memory that the first buffer allocated on 950, None before it.
    """

    def __init__(self, name: str, group: ProcessGroup, profile: Profile, buffsize_mb: int | None = None) -> None:
        self.name, self.group, self.profile = name, group, profile
        if buffsize_mb is None:
            buffsize_mb = hccl_buffsize()
        factor = 1 if active_deviations().window_factor_1 else 2
        self.window_bytes = factor * buffsize_mb * MIB
        self.window = Memory(group, 1, _UNTOUCHED)
        self.own: Memory | None = None

    def open(self, expected_bytes: int) -> tuple[Tensor, int, Memory | None]:
        """What a new buffer gets: context, ccl_buffer_size, and the memory that it must free.

        On 950 the engine's context is cached under the group's name: a second buffer finds the first one's, takes
        neither addresses nor an allocation from it, and reports the window's size (op csrc, comm_context).
        """
        rank, ranks = self.group.rank(), self.group.size()
        if not self.profile.is_950:
            return make_context(rank, ranks, self.window.address), self.window_bytes, None
        if self.own is not None:
            return no_context(), self.window_bytes, None
        self.own = Memory(self.group, 1, _CLEARED)
        return make_context(rank, ranks, self.own.address), expected_bytes, self.own


class Communicators:
    """All communicators of a simulated device in this process; they live as long as it does."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._of: dict[ProcessGroup, Communicator] = {}

    def make(self, group: ProcessGroup, buffsize_mb: int | None = None) -> Communicator:
        """The group's communicator, made if there is none; a second call changes nothing."""
        found = self._of.get(group)
        if found is None:
            name = f"hccl_{group.group_name}_{len(self._of)}"
            found = self._of[group] = Communicator(name, group, self.profile, buffsize_mb)
        return found

    def find(self, group: ProcessGroup) -> Communicator:
        """The communicator that exists; the operator looks it up with init_comm=False.

        Raises:
            RuntimeError: nobody made it.
        """
        found = self._of.get(group)
        if found is None:
            raise RuntimeError(
                f"the HCCL communicator of group {group.group_name} does not exist; call "
                'group._get_backend(torch.device("npu")).get_hccl_comm_name(rank) first'
            )
        return found

    def named(self, name: str) -> Communicator:
        """The communicator of that name.

        Raises:
            RuntimeError: there is none.
        """
        for found in self._of.values():
            if found.name == name:
                return found
        raise RuntimeError(f"there is no HCCL communicator {name!r}")
