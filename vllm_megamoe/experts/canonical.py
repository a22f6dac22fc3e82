"""Canonical experts: what every checkpoint format becomes and every operand is made of.

    DenseExperts    BF16 (or float32) weights
    IntExperts      integer codes, 8 or 4 bits, with a float32 scale per output channel
    MxExperts       FP8 or FP4 codes, with an E8M0 scale for each 32 along the input

Quantised or not is a type, not a pair of optional fields. All are frozen and checked when they are made; rows of the
first matrix are gate rows first, then up rows (`convert.in_halves` for weights that come otherwise). Each gives one of
its experts by itself (`one`), and itself filled up with zeros to sizes that a product takes (`padded`).

Padding is exact, because a padded channel adds nothing anywhere. Its encoding: code 0 in every format (INT4: value 0,
whose nibble the layout writes), scale 1.0 for integers, E8M0 byte 127 for MX groups: 0xFF would be NaN, and 0 times NaN
is NaN. Gate and up rows are padded by themselves: rows behind the fused 2I would move the border between them.

Letters: E experts, H hidden, I intermediate (after the activation).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_megamoe.errors import CheckpointError, LayoutError
from vllm_megamoe.numerics.mx import EMAX, GROUP, Elem

ONE_E8M0 = 127
"""2^0."""


Kind = Literal["dense", "int8", "int4", "e4m3", "e5m2", "e2m1"]


class _Sizes(ABC):
    """What all three types say of themselves."""

    __slots__ = ()
    w13: Tensor
    w2: Tensor

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """How a number is stored."""

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The tensors that these experts hold, the first matrix in front."""
        return tuple(value for field in fields(self) if isinstance(value := getattr(self, field.name), Tensor))  # type: ignore[arg-type]

    def on(self, device: torch.device) -> Self:
        """On a device; the same object where all of it is there already."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()}
        return self if all(moved[name] is value for name, value in values.items()) else type(self)(**moved)

    @property
    def num_experts(self) -> int:
        return self.held[0].shape[0]

    @property
    def hidden(self) -> int:
        return self.w2.shape[1]

    @property
    def intermediate(self) -> int:
        return self.w13.shape[1] // 2

    @property
    def likeness(self) -> str:
        """What the experts of a layer have in common, in words."""
        dtype = str(self.held[0].dtype).removeprefix("torch.")
        return f"{self.kind} ({dtype}) of hidden {self.hidden} and intermediate_hidden {self.intermediate}"


@dataclass(frozen=True, slots=True)
class DenseExperts(_Sizes):
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
        experts, intermediate = geometry("DenseExperts", self.w13, self.w2)
        check_dtype("DenseExperts.w13", self.w13, torch.bfloat16, torch.float32)
        check_dtype("DenseExperts.w2", self.w2, self.w13.dtype)
        check_shape("DenseExperts.w2", self.w2, (experts, self.w13.shape[2], intermediate), "[E, H, I]")

    @property
    def kind(self) -> Kind:
        return "dense"

    def one(self, e: int) -> "DenseExperts":
        """Expert e by itself, in the same memory."""
        return DenseExperts(self.w13[e : e + 1], self.w2[e : e + 1])

    def padded(self, hidden: int, intermediate: int) -> "DenseExperts":
        """At these sizes: new memory, or the same object where they are its own.

        Raises:
            LayoutError: a size is smaller than the experts' own.
        """
        if fits(self.hidden, self.intermediate, hidden, intermediate):
            return self
        return DenseExperts(fill_gate_up(self.w13, intermediate, hidden), fill(self.w2, hidden, intermediate))


@dataclass(frozen=True, slots=True)
class IntExperts(_Sizes):
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
        experts, intermediate = geometry("IntExperts", self.w13, self.w2)
        hidden = self.w13.shape[2]
        check_shape("IntExperts.w2", self.w2, (experts, hidden, intermediate), "[E, H, I]")
        check_shape("IntExperts.w13_scale", self.w13_scale, (experts, 2 * intermediate), "[E, 2I]")
        check_shape("IntExperts.w2_scale", self.w2_scale, (experts, hidden), "[E, H]")
        if self.bits not in (4, 8):
            raise CheckpointError(f"IntExperts.bits is {self.bits!r}; expected 4 or 8.")
        for name in ("w13", "w2"):
            codes, scale = getattr(self, name), getattr(self, f"{name}_scale")
            check_dtype(f"IntExperts.{name}", codes, torch.int8)
            check_dtype(f"IntExperts.{name}_scale", scale, torch.float32)
            check_positive(f"IntExperts.{name}_scale", scale)
            if self.bits == 4 and codes.numel() and not -8 <= int(codes.min()) <= int(codes.max()) <= 7:
                found = f"{int(codes.min())}..{int(codes.max())}"
                raise CheckpointError(f"IntExperts.{name} has codes {found}; expected -8..7 for 4 bits.")

    @property
    def kind(self) -> Kind:
        return "int4" if self.bits == 4 else "int8"

    def one(self, e: int) -> "IntExperts":
        """Expert e by itself, in the same memory."""
        own = slice(e, e + 1)
        return IntExperts(self.w13[own], self.w13_scale[own], self.w2[own], self.w2_scale[own], self.bits)

    def padded(self, hidden: int, intermediate: int) -> "IntExperts":
        """As `DenseExperts.padded`."""
        if fits(self.hidden, self.intermediate, hidden, intermediate):
            return self
        return IntExperts(
            fill_gate_up(self.w13, intermediate, hidden),
            fill_gate_up(self.w13_scale[:, :, None], intermediate, 1, 1.0)[:, :, 0],
            fill(self.w2, hidden, intermediate),
            fill(self.w2_scale[:, :, None], hidden, 1, 1.0)[:, :, 0],
            self.bits,
        )


@dataclass(frozen=True, slots=True)
class MxExperts(_Sizes):
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
        experts, intermediate = geometry("MxExperts", self.w13, self.w2)
        hidden = self.w13.shape[2] * self.per_byte
        shape2 = (experts, hidden, intermediate // self.per_byte)
        check_shape("MxExperts.w2", self.w2, shape2, "[E, H, I] (FP4: I/2)")
        scale13 = (experts, 2 * intermediate, -(-hidden // GROUP))
        check_shape("MxExperts.w13_scale", self.w13_scale, scale13, "[E, 2I, ceil(H/32)]")
        scale2 = (experts, hidden, -(-intermediate // GROUP))
        check_shape("MxExperts.w2_scale", self.w2_scale, scale2, "[E, H, ceil(I/32)]")
        for name in ("w13", "w13_scale", "w2", "w2_scale"):
            check_dtype(f"MxExperts.{name}", getattr(self, name), torch.uint8)

    @property
    def per_byte(self) -> int:
        """Codes in a byte."""
        return 2 if self.elem == "e2m1" else 1

    @property
    def kind(self) -> Kind:
        return self.elem

    def one(self, e: int) -> "MxExperts":
        """Expert e by itself, in the same memory."""
        own = slice(e, e + 1)
        return MxExperts(self.w13[own], self.w13_scale[own], self.w2[own], self.w2_scale[own], self.elem)

    def padded(self, hidden: int, intermediate: int) -> "MxExperts":
        """As `DenseExperts.padded`; a group that is filled up keeps its scale."""
        if fits(self.hidden, self.intermediate, hidden, intermediate):
            return self
        return MxExperts(
            fill_gate_up(self.w13, intermediate, hidden // self.per_byte),
            fill_gate_up(self.w13_scale, intermediate, -(-hidden // GROUP), ONE_E8M0),
            fill(self.w2, hidden, intermediate // self.per_byte),
            fill(self.w2_scale, hidden, -(-intermediate // GROUP), ONE_E8M0),
            self.elem,
        )


Experts = DenseExperts | IntExperts | MxExperts


def geometry(where: str, w13: Tensor, w2: Tensor) -> tuple[int, int]:
    """E and I of stacked weights [E, 2I, ...] and [E, ...]; both must be 3-D and 2I even."""
    if w13.dim() != 3 or w2.dim() != 3:
        raise CheckpointError(
            f"{where}: w13 has shape {list(w13.shape)}, w2 {list(w2.shape)}; expected [E, 2I, H] and [E, H, I]."
        )
    experts, rows = w13.shape[:2]
    if rows % 2:
        raise CheckpointError(f"{where}: w13 has {rows} rows; expected an even number, gate rows first, then up rows.")
    return experts, rows // 2


def check_dtype(where: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise CheckpointError(f"{where} has dtype {str(tensor.dtype).removeprefix('torch.')}; expected {expected}.")


def check_shape(where: str, tensor: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """`meaning` spells the letters of the expected shape."""
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"{where} has shape {list(tensor.shape)}; expected {meaning} = {list(shape)}.")


def check_positive(where: str, scale: Tensor) -> None:
    """Name the first scale that is not a finite number above 0."""
    bad = ~(torch.isfinite(scale) & (scale > 0))
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        raise CheckpointError(f"{where} is {float(scale[tuple(at)])!r} at {at}; expected finite scales above 0.")


def fits(hidden_was: int, intermediate_was: int, hidden: int, intermediate: int) -> bool:
    """Whether there is nothing to pad; smaller sizes would cut weights off."""
    if hidden < hidden_was or intermediate < intermediate_was:
        raise LayoutError(
            f"experts of hidden {hidden_was} and intermediate_hidden {intermediate_was} cannot become "
            f"{hidden} and {intermediate}; expected sizes that are at least as large. Pad to larger sizes."
        )
    return (hidden, intermediate) == (hidden_was, intermediate_was)


def fill_gate_up(t: Tensor, rows: int, columns: int, value: float = 0) -> Tensor:
    """[E, 2R, C] -> [E, 2 rows, columns], each half of the rows padded by itself."""
    halves = t.reshape(t.shape[0], 2, t.shape[1] // 2, t.shape[2])
    return fill(halves, rows, columns, value).flatten(1, 2)


def fill(t: Tensor, rows: int, columns: int, value: float = 0) -> Tensor:
    """[..., R, C] -> [..., rows, columns]."""
    return pad(t, (0, columns - t.shape[-1], 0, rows - t.shape[-2]), value=value)
