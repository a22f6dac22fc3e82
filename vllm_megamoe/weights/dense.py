"""Unquantised experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.weights.checks import want_dtype, want_geometry, want_shape


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """BF16 experts; float32 exists for the twin's comparison with other code.

    Attributes:
        w13: [E, 2I, H], gate rows first, then up rows.
        w2: [E, H, I], of the same dtype.

    Raises:
        CheckpointError: a shape or dtype does not fit.
    """

    w13: Tensor
    w2: Tensor

    def __post_init__(self) -> None:
        experts, intermediate = want_geometry("DenseExperts", self.w13, self.w2)
        want_dtype("DenseExperts.w13", self.w13, torch.bfloat16, torch.float32)
        want_dtype("DenseExperts.w2", self.w2, self.w13.dtype)
        want_shape("DenseExperts.w2", self.w2, (experts, self.w13.shape[2], intermediate), "[E, H, I]")

    @property
    def num_experts(self) -> int:
        return self.w13.shape[0]

    @property
    def hidden(self) -> int:
        return self.w2.shape[1]

    @property
    def intermediate(self) -> int:
        return self.w2.shape[2]
