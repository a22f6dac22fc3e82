"""What ranks do in test_smoke_recovery: a rank fails, and all go on."""

from typing import Any

import pytest
import torch
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.make import Shape, make_case
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.ops.twin import families

BAD = 1
Outcome = tuple[str, str]


def _prepared() -> tuple[Any, dict[str, Any]]:
    case = make_case("a8w8-int", Shape(tokens=(5, 3, 4), experts=6))
    with settings(timeout_s=20.0):
        buffer = get_symm_buffer_for_mega_moe(dist.group.WORLD, **buffer_arguments(case))
    return buffer, call_arguments(case, dist.get_rank(), Form())


def _attempt(buffer: Any, arguments: dict[str, Any]) -> Outcome | Tensor:
    try:
        return mega_moe(**arguments, sym_buffer=buffer)[0]
    except (ValueError, RuntimeError) as e:
        return type(e).__name__, str(e)


def rejected_several_times() -> tuple[list[Outcome], bool]:
    """Rank BAD's calls are rejected three times, then fine: the outcomes, and whether the last call was right."""
    buffer, arguments = _prepared()
    want = mega_moe(**arguments, sym_buffer=buffer)[0]
    bad = dict(arguments)
    if dist.get_rank() == BAD:
        bad["topk_ids"] = arguments["topk_ids"] + 50
    outcomes = [_attempt(buffer, bad) for _ in range(3)]
    after = _attempt(buffer, arguments)
    return [o for o in outcomes if not isinstance(o, Tensor)], isinstance(after, Tensor) and after.equal(want)


def broken_in_the_middle() -> tuple[Outcome | None, bool]:
    """Rank BAD fails between the two exchanges; then all is well."""
    buffer, arguments = _prepared()
    want = mega_moe(**arguments, sym_buffer=buffer)[0]
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == BAD:
            patch.setattr(families, "requantise", _out_of_memory)
        outcome = _attempt(buffer, arguments)
    # Other numbers, so that rows left over from the failed call would be seen.
    scaled = dict(arguments, x=-arguments["x"], topk_weights=arguments["topk_weights"] * 2)
    mega_moe(**scaled, sym_buffer=buffer)
    after = _attempt(buffer, arguments)
    return None if isinstance(outcome, Tensor) else outcome, isinstance(after, Tensor) and after.equal(want)


def _out_of_memory(*arguments: Any) -> Any:
    raise RuntimeError("out of memory")


def an_idle_rank() -> tuple[bool, list[int], list[int]]:
    """Rank BAD brings no token: the others' results do not change, and its own is empty."""
    buffer, arguments = _prepared()
    y, before = mega_moe(**arguments, sym_buffer=buffer)
    if dist.get_rank() == BAD:
        for name in ("x", "topk_ids", "topk_weights"):
            arguments[name] = arguments[name][:0]
        y = y[:0]
    again, counts = mega_moe(**arguments, sym_buffer=buffer)
    ids = torch.bincount(arguments["topk_ids"].flatten(), minlength=6)
    dist.all_reduce(ids)
    first = 2 * dist.get_rank()
    return again.equal(y) and bool((counts <= before).all()), counts.tolist(), ids[first : first + 2].tolist()
