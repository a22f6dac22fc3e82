"""Integer experts with a scale per output channel."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.weights.checks import want_dtype, want_geometry, want_positive, want_shape


@dataclass(frozen=True, slots=True)
class IntExperts:
    """weight = code * scale of its output channel. INT4 codes take a byte each here.

    Attributes:
        w13: int8 [E, 2I, H], gate rows first.
        w13_scale: float32 [E, 2I], above 0.
        w2: int8 [E, H, I].
        w2_scale: float32 [E, H], above 0.
        bits: 8, or 4 for codes from -8 to 7.

    Raises:
        CheckpointError: a shape, dtype, scale or code does not fit.
    """

    w13: Tensor
    w13_scale: Tensor
    w2: Tensor
    w2_scale: Tensor
    bits: Literal[4, 8] = 8

    def __post_init__(self) -> None:
        experts, intermediate = want_geometry("IntExperts", self.w13, self.w2)
        hidden = self.w13.shape[2]
        want_shape("IntExperts.w2", self.w2, (experts, hidden, intermediate), "[E, H, I]")
        want_shape("IntExperts.w13_scale", self.w13_scale, (experts, 2 * intermediate), "[E, 2I]")
        want_shape("IntExperts.w2_scale", self.w2_scale, (experts, hidden), "[E, H]")
        if self.bits not in (4, 8):
            raise CheckpointError(f"IntExperts.bits is {self.bits!r}; wanted 4 or 8.")
        for name in ("w13", "w2"):
            codes, scale = getattr(self, name), getattr(self, f"{name}_scale")
            want_dtype(f"IntExperts.{name}", codes, torch.int8)
            want_dtype(f"IntExperts.{name}_scale", scale, torch.float32)
            want_positive(f"IntExperts.{name}_scale", scale)
            if self.bits == 4 and codes.numel() and not -8 <= int(codes.min()) <= int(codes.max()) <= 7:
                found = f"{int(codes.min())}..{int(codes.max())}"
                raise CheckpointError(f"IntExperts.{name} has codes {found}; wanted -8..7 for 4 bits.")

    @property
    def num_experts(self) -> int:
        return self.w13.shape[0]

    @property
    def hidden(self) -> int:
        return self.w2.shape[1]

    @property
    def intermediate(self) -> int:
        return self.w2.shape[2]
