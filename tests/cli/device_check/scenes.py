"""What a rank does in these tests: one step of a device check on a simulated device that is wrong on purpose."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from vllm_megamoe.cli.device_check.examine import run_step
from vllm_megamoe.ops import backend
from vllm_megamoe.ops.cann.installed import installed
from vllm_megamoe.simulator import deviations, device

SPOILED_RANK, SPOILED_TOKEN = 1, 3


@dataclass(frozen=True)
class Wrong:
    """A step on a simulated device.

    Attributes:
        switches: names of Deviations that are on.
        spoiled: whether one row of one rank comes back 3 % too large, which no switch describes.
    """

    switches: tuple[str, ...] = ()
    spoiled: bool = False

    def __call__(self, profile: str, step: str, answers: Mapping[str, str]) -> Any:
        os.environ["VLLM_MEGAMOE_SIMULATE"] = profile
        _forget()
        operator = device(profile).modules["cann_ops_transformer.ops"]
        right = operator.mega_moe
        try:
            if self.spoiled:
                operator.mega_moe = _spoiled(right)
            with deviations(**dict.fromkeys(self.switches, True)):
                return run_step(profile, step, answers)
        finally:
            operator.mega_moe = right
            del os.environ["VLLM_MEGAMOE_SIMULATE"]
            _forget()


def _forget() -> None:
    """Which operator is installed is looked up once in a process."""
    backend.resolve.cache_clear()
    installed.cache_clear()


def _spoiled(right: Any) -> Any:
    def mega_moe(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        y, counts = right(*arguments, **named)
        if dist.get_rank() == SPOILED_RANK:
            y[SPOILED_TOKEN] *= 1.03
        return y, counts

    mega_moe.__signature__ = right.__signature__  # type: ignore[attr-defined]
    return mega_moe
