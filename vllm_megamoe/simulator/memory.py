"""Memory that rows of other ranks land in, found by its address as the kernel finds it.

It is never cleared between calls: what nobody wrote in this call is what an earlier call left, of whichever buffer.
"""

import itertools
import weakref

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

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
