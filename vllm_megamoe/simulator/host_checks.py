"""The device's own host checks: what they refuse comes as RuntimeError, what they miss goes through.

Rules of the product that the device breaks in silence are left out here: the simulated kernel shows what comes of them.
"""

from collections.abc import Iterable

import torch

from vllm_megamoe.profiles.call_facts import Broken, BufferFacts
from vllm_megamoe.profiles.profile import Profile
from vllm_megamoe.profiles.rules import broken_by_buffer, broken_by_call
from vllm_megamoe.simulator.arguments import OperatorArguments
from vllm_megamoe.simulator.describe import buffer_facts, call_facts

_ROWS_TYPES = (torch.bfloat16, torch.float16)


def check_buffer(profile: Profile, buffer: BufferFacts) -> None:
    """The range checks of a buffer's creation (op csrc, get_mega_moe_ccl_buffer_size).

    Raises:
        RuntimeError: the first one that is broken.
    """
    _raise_first(profile, broken_by_buffer(profile, buffer))


def check_call(profile: Profile, a: OperatorArguments) -> None:
    """The checks of a call: the extension's own few, then those of the tiling.

    Raises:
        RuntimeError: the first one that is broken.
    """
    if a.x.dim() != 2 or a.topk_ids.dim() != 2:
        raise RuntimeError(f"x and topk_ids must be 2D, but got {a.x.dim()}D and {a.topk_ids.dim()}D")
    if a.x.dtype not in _ROWS_TYPES:
        raise RuntimeError(f"The dtype of x must be bfloat16 or float16, but got {a.x.dtype}")
    if a.topk_ids.dtype != torch.int32:
        raise RuntimeError(f"The dtype of topk_ids must be int32, but got {a.topk_ids.dtype}")
    buffer = buffer_facts(a)
    _raise_first(profile, [*broken_by_buffer(profile, buffer), *broken_by_call(profile, buffer, call_facts(a))])


def _raise_first(profile: Profile, broken: Iterable[Broken]) -> None:
    for rule in broken:
        if not rule.silent:
            raise RuntimeError(
                f"[{profile.name} simulated] {rule.argument}={rule.value}; wanted {rule.wanted} ({rule.source})"
            )
