"""The context tensor: what a buffer tells the kernel about its communicator (op struct CommContext).

int32 [4100]: u32 rank, u32 ranks per server, u64 context address, u64 [1024] windows, u64 [1024] handles.
"""

import torch
from torch import Tensor

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
