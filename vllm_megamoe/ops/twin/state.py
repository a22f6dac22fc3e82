"""What the twin keeps for each buffer, and the names under which its custom op finds a buffer again."""

import itertools
import weakref

from torch import Tensor

from vllm_megamoe.errors import OperatorError
from vllm_megamoe.ops.buffer import SymmBuffer
from vllm_megamoe.profiles.facts import BufferFacts

_numbers = itertools.count(1)
_buffers: "weakref.WeakValueDictionary[str, SymmBuffer]" = weakref.WeakValueDictionary()


class TwinState:
    """One buffer's.

    Attributes:
        number: place among the group's buffers in order of creation, from 1 on; calls with it say so to the peers.
        calls_completed: calls so far.
        created: configuration at its creation.
        old_slots: what landed in earlier calls, where numerics.stale_slots is `old`.
        destroyed: whether it was given back; its handle stays, so that the peers learn of a call with it.
        handle: name under which the custom op finds the buffer. A string, because torch.compile would turn an int that
            differs between layers into a symbol.
    """

    def __init__(self, number: int, created: BufferFacts | None = None, calls_completed: int = 0) -> None:
        self.number = number
        self.created = created
        self.calls_completed = calls_completed
        self.old_slots: Tensor | None = None
        self.destroyed = False
        self.handle = f"buffer {next(_numbers)}"

    def destroy(self) -> None:
        """Give back what the buffer holds."""
        self.old_slots = None
        self.destroyed = True


def state_of(buffer: SymmBuffer) -> TwinState:
    """The twin's state of a buffer that the twin made."""
    held = buffer.held
    if not isinstance(held, TwinState):
        raise TypeError(f"{buffer!r} was made by another backend than the twin")
    return held


def register(buffer: SymmBuffer) -> None:
    """Let the custom op find the buffer for as long as somebody holds it."""
    _buffers[state_of(buffer).handle] = buffer


def buffer_of(handle: str) -> SymmBuffer:
    """The buffer behind a handle.

    Raises:
        OperatorError: its last reference is gone.
    """
    found = _buffers.get(handle)
    if found is None:
        raise OperatorError(
            f"sym_buffer: nothing holds {handle} any more; expected a live buffer. Keep the object that "
            "get_symm_buffer_for_mega_moe returned for as long as calls are made."
        )
    return found
