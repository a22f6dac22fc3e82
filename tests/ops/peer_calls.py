"""What ranks do wrong together: each function is one rank's part after a first call that went well."""

import time
from typing import Any

from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import distributed as dist

from vllm_megamoe.ops import SymmBuffer, get_symm_buffer_for_mega_moe, mega_moe, settings

PATIENCE_S = 60.0
"""Longer than a peer takes to answer, on a machine that is busy with other things too."""
TIMEOUT_S = 3.0
"""For the one rank that is left alone."""
ROOM = {"num_max_tokens_per_rank": 16}


def _arguments(seed: int = 0) -> dict[str, Any]:
    case = make_case("a8w8-int", Shape(tokens=(5, 3)), seed=seed)
    return call_arguments(case, dist.get_rank(), Form())


def _buffer(**changes: Any) -> SymmBuffer:
    case = make_case("a8w8-int", Shape(tokens=(5, 3)))
    expected = buffer_arguments(case) | ROOM | changes
    with settings(timeout_s=PATIENCE_S):
        return get_symm_buffer_for_mega_moe(dist.group.WORLD, **expected)


def _first_call(buffer: SymmBuffer) -> None:
    mega_moe(**_arguments(), sym_buffer=buffer)


def another_capacity(value: int) -> None:
    """Rank 1's buffer is made for another number of tokens."""
    _first_call(_buffer())
    changes = {"num_max_tokens_per_rank": value} if dist.get_rank() == 1 else {}
    mega_moe(**_arguments(), sym_buffer=_buffer(**changes))


def another_mode(name: str, value: Any) -> None:
    """Rank 1 sets an attribute of its buffer after the first call; attributes are read at every call."""
    buffer = _buffer()
    _first_call(buffer)
    if dist.get_rank() == 1:
        setattr(buffer, name, value)
    mega_moe(**_arguments(), sym_buffer=buffer)


def another_order() -> None:
    """Two layers with a buffer each; rank 1 calls them the other way round."""
    first, second = _buffer(), _buffer()
    _first_call(first)
    _first_call(second)
    for buffer in (first, second) if dist.get_rank() == 0 else (second, first):
        mega_moe(**_arguments(), sym_buffer=buffer)


def no_call(seconds: float) -> str:
    """Rank 1 does something else for longer than rank 0 waits."""
    buffer = _buffer()
    _first_call(buffer)
    if dist.get_rank() == 1:
        time.sleep(seconds)
        return "rank 1 never called"
    with settings(timeout_s=TIMEOUT_S):
        mega_moe(**_arguments(), sym_buffer=buffer)
    return "rank 0 got a result"


def rejected_call() -> None:
    """Rank 1's call is rejected: an id is out of range."""
    buffer = _buffer()
    _first_call(buffer)
    arguments = _arguments()
    if dist.get_rank() == 1:
        arguments["topk_ids"][0, 0] = 99
    mega_moe(**arguments, sym_buffer=buffer)


def rejected_then_fine() -> tuple[bytes, bytes]:
    """A call that is rejected on both ranks alike, between two that are not."""
    buffer = _buffer()
    before, _ = mega_moe(**_arguments(), sym_buffer=buffer)
    try:
        mega_moe(**_arguments() | {"activation": "relu"}, sym_buffer=buffer)
    except ValueError:
        after, _ = mega_moe(**_arguments(), sym_buffer=buffer)
        return before.float().numpy().tobytes(), after.float().numpy().tobytes()
    raise AssertionError("activation='relu' was taken")
