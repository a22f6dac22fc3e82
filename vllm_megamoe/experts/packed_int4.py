"""INT4 experts whose codes stay two in a byte, from the file to the operand: msModelSlim's bytes are the operator's."""

import torch
from torch import Tensor

from vllm_megamoe.experts.canonical import (
    IntExperts,
    check_dtype,
    check_positive,
    check_shape,
    fill,
    fill_gate_up,
    fits,
    geometry,
)
from vllm_megamoe.layout.packing import unpack_int4_rows


class PackedInt4(IntExperts):
    """Experts of 4 bits as msModelSlim packs them and the operator takes them: two output channels in a byte.

    They are IntExperts to everybody: `w13` and `w2` are unpacked anew each time that they are asked for. Whoever can
    use the bytes takes `packed13` and `packed2`, int8 [E, I, H] and [E, H/2, I], the even channel in the low nibble.
    Gate rows and up rows fill bytes of their own, so I is even.

    Raises:
        CheckpointError: a shape, dtype or scale does not fit.
    """

    __slots__ = ("packed2", "packed13")
    packed13: Tensor
    packed2: Tensor

    def __init__(self, packed13: Tensor, w13_scale: Tensor, packed2: Tensor, w2_scale: Tensor) -> None:
        given = {"packed13": packed13, "w13_scale": w13_scale, "packed2": packed2, "w2_scale": w2_scale, "bits": 4}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        experts, intermediate = geometry("PackedInt4", packed13, packed2)
        # A byte has two rows: those of gate and up together are twice as many as the bytes.
        intermediate, hidden = 2 * intermediate, packed13.shape[2]
        check_shape("PackedInt4.packed2", packed2, (experts, hidden // 2, intermediate), "[E, H/2, I]")
        check_shape("PackedInt4.w13_scale", w13_scale, (experts, 2 * intermediate), "[E, 2I]")
        check_shape("PackedInt4.w2_scale", w2_scale, (experts, hidden), "[E, H]")
        for name, value in given.items():
            if isinstance(value, Tensor):
                check_dtype(f"PackedInt4.{name}", value, torch.float32 if "scale" in name else torch.int8)
                if "scale" in name:
                    check_positive(f"PackedInt4.{name}", value)

    @property
    def held(self) -> tuple[Tensor, ...]:
        return self.packed13, self.w13_scale, self.packed2, self.w2_scale

    def on(self, device: torch.device) -> "PackedInt4":
        """As `DenseExperts.on`."""
        moved = [tensor.to(device) for tensor in self.held]
        return self if all(a is b for a, b in zip(moved, self.held, strict=True)) else PackedInt4(*moved)

    @property
    def w13(self) -> Tensor:  # type: ignore[override]
        """int8 [E, 2I, H], as IntExperts have it."""
        return _unpacked(self.packed13)

    @property
    def w2(self) -> Tensor:  # type: ignore[override]
        """int8 [E, H, I], as IntExperts have it."""
        return _unpacked(self.packed2)

    @property
    def hidden(self) -> int:
        return self.packed13.shape[2]

    @property
    def intermediate(self) -> int:
        return self.packed2.shape[2]

    def one(self, e: int) -> "PackedInt4":
        """Expert e by itself, in the same memory."""
        own = slice(e, e + 1)
        return PackedInt4(self.packed13[own], self.w13_scale[own], self.packed2[own], self.w2_scale[own])

    def padded(self, hidden: int, intermediate: int) -> IntExperts:
        """As `DenseExperts.padded`; unpacked where a size is odd."""
        if fits(self.hidden, self.intermediate, hidden, intermediate):
            return self
        if hidden % 2 or intermediate % 2:
            return IntExperts(self.w13, self.w13_scale, self.w2, self.w2_scale, 4).padded(hidden, intermediate)
        return PackedInt4(
            fill_gate_up(self.packed13, intermediate // 2, hidden),
            fill_gate_up(self.w13_scale[:, :, None], intermediate, 1, 1.0)[:, :, 0],
            fill(self.packed2, hidden // 2, intermediate),
            fill(self.w2_scale[:, :, None], hidden, 1, 1.0)[:, :, 0],
        )


def _unpacked(packed: Tensor) -> Tensor:
    """[E, R, C] -> [E, 2R, C]."""
    return torch.stack([unpack_int4_rows(one) for one in packed])
