"""What a rank does in these tests: a group of its own, one layer, calls of the simulated device and of the twin."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from ops.operands import Form, buffer_arguments, call_arguments
from oracle.case import Case, Mx
from oracle.make import Shape, make_case
from torch import Tensor
from torch import distributed as dist

from vllm_megamoe.ops import get_symm_buffer_for_mega_moe, mega_moe, settings
from vllm_megamoe.simulator import device

Arguments = dict[str, Any]
RELEASE_LACKS = ("topk_weights_type", "combine_comm_mode")
"""Arguments of creation that CANN 9.1.0 does not have (torch_api.txt)."""
SMALL_950 = Shape(tokens=(6, 6), experts=6, hidden=4096, intermediate=512, topk=6)
"""The least layer that 950 takes in CANN 9.1.0 (op tiling arch35: hidden 4096, topk 6 or 8, weight1 rows 1024)."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one call gave a rank, as numbers that travel to the test."""

    y: np.ndarray
    counts: list[int]
    ids: np.ndarray


@cache
def layer(use_case: str, tokens: tuple[int, ...] = (6, 6), small_950: bool = False, seed: int = 0) -> Case:
    """A layer that every A2, A3 and 950@9.2 takes, or the least one of 950@9.1; two experts a token or six."""
    if not small_950:
        return make_case(use_case, Shape(tokens, 4, 1024, 1024, 2), seed=seed)
    # Two experts are drawn, the others are those with other scales: drawing all of them would take seconds.
    tiny = make_case(use_case, replace(SMALL_950, tokens=tokens, intermediate=32), seed=seed)
    drawn = make_case(use_case, replace(SMALL_950, tokens=(1,), experts=2, topk=1), seed=seed).experts
    assert isinstance(drawn, Mx)
    s13, s2 = (np.concatenate([s, s - 1, s + 1]) for s in (drawn.s13, drawn.s2))
    experts = replace(drawn, w13=np.tile(drawn.w13, (3, 1, 1)), w2=np.tile(drawn.w2, (3, 1, 1)), s13=s13, s2=s2)
    return replace(tiny, experts=experts)


def inputs(case: Case, rank: int, **changes: Any) -> Arguments:
    """A rank's arguments of a call, in the product's layout, without those that are None."""
    mx = case.act_elem is not None
    blocks = case.use_case not in ("a16w16", "a8w8-fp")
    given = call_arguments(case, rank, Form(blocks, stacked=mx)) | changes
    return {name: value for name, value in given.items() if value is not None}


class Simulated:
    """A simulated device with a new communicator of this group's two ranks."""

    def __init__(self, name: str) -> None:
        self.device = device(name)
        self.ops = self.device.modules["cann_ops_transformer.ops"]
        self.group = dist.new_group([0, 1])
        self.device.make_communicator(self.group)

    def buffer(self, case: Case, **changes: Any) -> Any:
        """A buffer for the layer."""
        given = buffer_arguments(case)
        lacking = RELEASE_LACKS if self.device.profile.revision == "9.1" else RELEASE_LACKS[1:]
        given = {name: value for name, value in given.items() if name not in lacking}
        return self.ops.get_symm_buffer_for_mega_moe(self.group, **given | changes)

    def call(self, buffer: Any, arguments: Arguments) -> Result:
        """One call."""
        y, counts = self.ops.mega_moe(**arguments, sym_buffer=buffer)
        return as_result(y, counts, arguments["topk_ids"])


def simulate(name: str, case: Case, rank: int, *, create: Arguments | None = None, **changes: Any) -> Result:
    """A first call on a new communicator."""
    scene = Simulated(name)
    return scene.call(scene.buffer(case, **create or {}), inputs(case, rank, **changes))


def twin(profile: str, case: Case, rank: int, *, create: Arguments | None = None, **changes: Any) -> Result:
    """The same of the twin, with the product's rules or none."""
    with settings(profile=profile, timeout_s=30):
        buffer = get_symm_buffer_for_mega_moe(dist.new_group([0, 1]), **buffer_arguments(case) | (create or {}))
        arguments = inputs(case, rank, **changes)
        y, counts = mega_moe(**arguments, sym_buffer=buffer)
    return as_result(y, counts, arguments["topk_ids"])


def as_result(y: Tensor, counts: Tensor, ids: Tensor) -> Result:
    """Tensors to what can be sent."""
    return Result(y.float().numpy(), counts.tolist(), ids.numpy().copy())
