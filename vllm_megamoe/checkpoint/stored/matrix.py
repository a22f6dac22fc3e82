"""One projection of one expert as the numbers that a checkpoint means, and three of them as one expert.

N are the output channels, K the inputs. Which kind a matrix is says what the operator can hold without a rounding.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.packed_int4 import PackedInt4
from vllm_megamoe.layout.packing import unpack_int4_rows
from vllm_megamoe.numerics.mx import GROUP, Elem, decode_bytes, e8m0_value
from vllm_megamoe.profiles.use_cases import UseCase


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Unquantised: w bfloat16, float16 or float32 [N, K]."""

    w: Tensor


@dataclass(frozen=True, slots=True)
class IntMatrix:
    """codes int8 [N, K], one a byte, times scale float32 [N]; bits 4 for codes from -8 to 7."""

    codes: Tensor
    scale: Tensor
    bits: Literal[4, 8]


class PackedInt4Matrix(IntMatrix):
    """IntMatrix of 4 bits whose codes stay packed, int8 [N/2, K], the even channel low; `codes` unpacks them."""

    __slots__ = ("packed",)
    packed: Tensor

    def __init__(self, packed: Tensor, scale: Tensor) -> None:
        for name, value in (("packed", packed), ("scale", scale), ("bits", 4)):
            object.__setattr__(self, name, value)

    @property
    def codes(self) -> Tensor:
        """int8 [N, K], one a byte, made anew each time."""
        return unpack_int4_rows(self.packed)

    def plain(self) -> IntMatrix:
        """The same with a byte for each code."""
        return IntMatrix(self.codes, self.scale, self.bits)


@dataclass(frozen=True, slots=True)
class MxMatrix:
    """codes uint8 [N, K], e2m1 packed [N, K/2] with the even input low; scale uint8 E8M0 [N, ceil(K/32)]."""

    codes: Tensor
    scale: Tensor
    elem: Elem


@dataclass(frozen=True, slots=True)
class RealMatrix:
    """Values float32 [N, K] of codes whose scales are neither one per channel nor powers of two per 32 inputs.

    Attributes:
        values: as above.
        why: what stands in the way of an exact kind, a sentence without its end that names the tensor.
    """

    values: Tensor
    why: str = ""


Matrix = DenseMatrix | IntMatrix | MxMatrix | RealMatrix


def values_of(matrix: Matrix) -> Tensor:
    """float32 [N, K], the numbers that the checkpoint means."""
    if isinstance(matrix, DenseMatrix):
        return matrix.w.float()
    if isinstance(matrix, IntMatrix):
        return matrix.codes.float() * matrix.scale[:, None]
    if isinstance(matrix, RealMatrix):
        return matrix.values
    values = decode_bytes(matrix.codes, matrix.elem)
    factors = e8m0_value(matrix.scale).repeat_interleave(GROUP, dim=1)
    return values * factors[:, : values.shape[1]]


def own_memory(matrix: Matrix) -> Matrix:
    """The matrix in memory of its own, not the file's."""
    if isinstance(matrix, PackedInt4Matrix):
        return matrix.plain()
    tensors = {field.name: getattr(matrix, field.name) for field in fields(matrix)}
    own: Any = {name: value.clone() for name, value in tensors.items() if isinstance(value, Tensor)}
    return replace(matrix, **own)


def split_rows(matrix: Matrix, parts: int) -> list[Matrix]:
    """The matrix as this many of equal rows, in the same memory where it holds its codes."""
    if isinstance(matrix, PackedInt4Matrix):
        matrix = matrix.plain()
    values = {field.name: getattr(matrix, field.name) for field in fields(matrix)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    pieces: Any = zip(*(tensor.chunk(parts) for tensor in tensors.values()), strict=True)
    return [replace(matrix, **dict(zip(tensors, piece, strict=True))) for piece in pieces]


def cut_expert(experts: Experts) -> tuple[Matrix, Matrix, Matrix]:
    """Gate, up and down of canonical experts of one: the inverse of `join_expert`."""
    half = experts.intermediate

    def cut(tensor: Tensor) -> tuple[Tensor, Tensor]:
        return tensor[0, :half], tensor[0, half:]

    if isinstance(experts, DenseExperts):
        gate, up = cut(experts.w13)
        return DenseMatrix(gate), DenseMatrix(up), DenseMatrix(experts.w2[0])
    weights, scales = cut(experts.w13), cut(experts.w13_scale)
    if isinstance(experts, IntExperts):
        first, second = (IntMatrix(*pair, experts.bits) for pair in zip(weights, scales, strict=True))
        return first, second, IntMatrix(experts.w2[0], experts.w2_scale[0], experts.bits)
    one, other = (MxMatrix(*pair, experts.elem) for pair in zip(weights, scales, strict=True))
    return one, other, MxMatrix(experts.w2[0], experts.w2_scale[0], experts.elem)


def join_expert(gate: Matrix, up: Matrix, down: Matrix, where: str) -> Experts:
    """The three projections of an expert -> canonical experts of one, gate rows first.

    INT4 beside INT8 (zero points moved the codes of one projection alone) is INT8. Where one projection's numbers are
    free ones, which its scales decide, the expert is dense float32, rounded with consent like any other. All else of
    two kinds is no expert that the operator can hold, so it is rejected.

    Args:
        where: the expert's name, for the message.

    Raises:
        CheckpointError: the projections are stored in different ways.
    """
    kinds = {_kind(gate), _kind(up), _kind(down)}
    if len(kinds) > 1 and kinds != {"int4", "int8"} and "real" not in kinds:
        named = ", ".join(f"{name} {_kind(m)}" for name, m in (("gate", gate), ("up", up), ("down", down)))
        raise CheckpointError(
            f"{where}: projections stored in different ways ({named}); expected one way for all three. Quantise the "
            "whole expert alike, or none of it."
        )
    if isinstance(gate, PackedInt4Matrix) and isinstance(up, PackedInt4Matrix) and isinstance(down, PackedInt4Matrix):
        packed, scale = torch.cat([gate.packed, up.packed]), torch.cat([gate.scale, up.scale])
        return PackedInt4(packed[None], scale[None], down.packed[None], down.scale[None])
    if isinstance(gate, IntMatrix) and isinstance(up, IntMatrix) and isinstance(down, IntMatrix):
        scale = torch.cat([gate.scale, up.scale])
        codes = torch.cat([gate.codes, up.codes])
        bits: Literal[4, 8] = 4 if kinds == {"int4"} else 8
        return IntExperts(codes[None], scale[None], down.codes[None], down.scale[None], bits)
    if isinstance(gate, MxMatrix) and isinstance(up, MxMatrix) and isinstance(down, MxMatrix):
        codes, scale = torch.cat([gate.codes, up.codes]), torch.cat([gate.scale, up.scale])
        return MxExperts(codes[None], scale[None], down.codes[None], down.scale[None], gate.elem)
    # A part of an expert alone in bfloat16 would not stack with the others' float32.
    plain = values_of if "real" in kinds else _plain
    return DenseExperts(torch.cat([plain(gate), plain(up)])[None], plain(down)[None])


def _kind(matrix: Matrix) -> str:
    if isinstance(matrix, IntMatrix):
        return f"int{matrix.bits}"
    if isinstance(matrix, MxMatrix):
        return f"mx {matrix.elem}"
    return "dense" if isinstance(matrix, DenseMatrix) else "real"


def _plain(matrix: Matrix) -> Tensor:
    if isinstance(matrix, DenseMatrix):
        return matrix.w if matrix.w.dtype == torch.bfloat16 else matrix.w.float()
    return values_of(matrix)


_PLACES: dict[str, frozenset[UseCase]] = {
    "int8": frozenset({UseCase.A8W8_INT}),
    "int4": frozenset({UseCase.A8W4_INT, UseCase.A8W8_INT}),
    "mx e4m3": frozenset({UseCase.A8W8_FP}),
    "mx e5m2": frozenset({UseCase.A8W8_FP}),
    "mx e2m1": frozenset({UseCase.A8W4_FP, UseCase.A4W4_FP, UseCase.A8W8_FP}),
}
"""Use cases with a place for a matrix's codes and scales as they are; every number may be one of A16W16."""


def check_kept(matrix: Matrix, use_case: UseCase, dtype: torch.dtype, where: str) -> None:
    """Raise where a use case cannot hold a matrix's numbers, for a plan that promised that it can.

    Most promises follow from the format. Some hang on the numbers, and so are tested here: scales that a config says
    are powers of two, zero points, float16 that bfloat16 may not hold.

    Args:
        dtype: that the model runs with, which decides what A16W16 holds.
        where: the projection's full name.

    Raises:
        CheckpointError: naming the tensor where the matrix knows it, and what consent would allow.
    """
    if use_case in _PLACES.get(_kind(matrix), ()):
        return
    if use_case is UseCase.A16W16 and _held_by(dtype, matrix):
        return
    why = matrix.why if isinstance(matrix, RealMatrix) and matrix.why else f"{where} holds {_kind(matrix)} numbers"
    raise CheckpointError(
        f"{why}: {use_case.value} would round them; expected numbers that it holds exactly, as the plan was made for. "
        'Add "requant": "allow" to the megamoe options to consent to the loss, or choose another use_case.'
    )


def _held_by(dtype: torch.dtype, matrix: Matrix) -> bool:
    """Whether dense weights of the model's dtype are these numbers; float32 keeps all that `values_of` gives."""
    if dtype == torch.float32:
        return True
    if isinstance(matrix, DenseMatrix) and matrix.w.dtype == dtype:
        return True
    values = values_of(matrix)
    return bool((values.to(dtype).float() == values).all())
