"""Microscaling experts: FP8 or FP4 codes with an E8M0 scale for each 32 along the input dimension."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.numerics.minifloat import EMAX, Elem
from vllm_megamoe.numerics.mx import GROUP
from vllm_megamoe.weights.checks import want_dtype, want_geometry, want_shape


@dataclass(frozen=True, slots=True)
class MxExperts:
    """weight = value of its code * 2^(scale byte - 127).

    Attributes:
        w13: uint8 codes [E, 2I, H]; packed [E, 2I, H/2] for `e2m1`, low nibble = even input.
        w13_scale: uint8 E8M0 [E, 2I, ceil(H/32)].
        w2: uint8 codes [E, H, I] or packed [E, H, I/2].
        w2_scale: uint8 E8M0 [E, H, ceil(I/32)].
        elem: `e4m3`, `e5m2` or `e2m1`.

    Raises:
        CheckpointError: a shape or dtype does not fit.
    """

    w13: Tensor
    w13_scale: Tensor
    w2: Tensor
    w2_scale: Tensor
    elem: Elem

    def __post_init__(self) -> None:
        if self.elem not in EMAX:
            raise CheckpointError(f"MxExperts.elem is {self.elem!r}; wanted one of {', '.join(EMAX)}.")
        experts, intermediate = want_geometry("MxExperts", self.w13, self.w2)
        per_byte = 2 if self.elem == "e2m1" else 1
        hidden = self.w13.shape[2] * per_byte
        want_shape("MxExperts.w2", self.w2, (experts, hidden, intermediate // per_byte), "[E, H, I] (FP4: I/2)")
        scale13 = (experts, 2 * intermediate, -(-hidden // GROUP))
        want_shape("MxExperts.w13_scale", self.w13_scale, scale13, "[E, 2I, ceil(H/32)]")
        scale2 = (experts, hidden, -(-intermediate // GROUP))
        want_shape("MxExperts.w2_scale", self.w2_scale, scale2, "[E, H, ceil(I/32)]")
        for name in ("w13", "w13_scale", "w2", "w2_scale"):
            want_dtype(f"MxExperts.{name}", getattr(self, name), torch.uint8)

    @property
    def num_experts(self) -> int:
        return self.w13.shape[0]

    @property
    def hidden(self) -> int:
        return self.w2.shape[1]

    @property
    def intermediate(self) -> int:
        return self.w13.shape[1] // 2
