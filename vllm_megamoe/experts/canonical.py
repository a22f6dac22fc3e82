"""Checks that the canonical experts share.

Unquantised experts.

Integer experts with a scale per output channel.

Microscaling experts: FP8 or FP4 codes with an E8M0 scale for each 32 along the input dimension.

Canonical experts: what every checkpoint format becomes and every operand is made of.

Quantised or not is a type, not a pair of optional fields. All are frozen, and checked when they are made.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.numerics.mx import EMAX, GROUP, Elem


def want_dtype(where: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raise CheckpointError unless the tensor has one of the dtypes."""
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise CheckpointError(f"{where} has dtype {str(tensor.dtype).removeprefix('torch.')}; expected {expected}.")


def want_shape(where: str, tensor: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """Raise CheckpointError unless the tensor has the shape, whose letters `meaning` spells."""
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"{where} has shape {list(tensor.shape)}; expected {meaning} = {list(shape)}.")


def want_geometry(where: str, w13: Tensor, w2: Tensor) -> tuple[int, int]:
    """E and I of stacked weights [E, 2I, ...] and [E, ...]; both must be 3-D and 2I even."""
    if w13.dim() != 3 or w2.dim() != 3:
        raise CheckpointError(
            f"{where}: w13 has shape {list(w13.shape)}, w2 {list(w2.shape)}; expected [E, 2I, H] and [E, H, I]."
        )
    experts, rows = w13.shape[:2]
    if rows % 2:
        raise CheckpointError(f"{where}: w13 has {rows} rows; expected an even number, gate rows first, then up rows.")
    return experts, rows // 2


def want_positive(where: str, scale: Tensor) -> None:
    """Raise CheckpointError naming the first scale that is not a finite number above 0."""
    bad = ~(torch.isfinite(scale) & (scale > 0))
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        raise CheckpointError(f"{where} is {float(scale[tuple(at)])!r} at {at}; expected finite scales above 0.")


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
            raise CheckpointError(f"IntExperts.bits is {self.bits!r}; expected 4 or 8.")
        for name in ("w13", "w2"):
            codes, scale = getattr(self, name), getattr(self, f"{name}_scale")
            want_dtype(f"IntExperts.{name}", codes, torch.int8)
            want_dtype(f"IntExperts.{name}_scale", scale, torch.float32)
            want_positive(f"IntExperts.{name}_scale", scale)
            if self.bits == 4 and codes.numel() and not -8 <= int(codes.min()) <= int(codes.max()) <= 7:
                found = f"{int(codes.min())}..{int(codes.max())}"
                raise CheckpointError(f"IntExperts.{name} has codes {found}; expected -8..7 for 4 bits.")

    @property
    def num_experts(self) -> int:
        return self.w13.shape[0]

    @property
    def hidden(self) -> int:
        return self.w2.shape[1]

    @property
    def intermediate(self) -> int:
        return self.w2.shape[2]


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
            raise CheckpointError(f"MxExperts.elem is {self.elem!r}; expected one of {', '.join(EMAX)}.")
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


Experts = DenseExperts | IntExperts | MxExperts
