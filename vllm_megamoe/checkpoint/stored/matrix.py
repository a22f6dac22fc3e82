"""One projection of one expert as the numbers that a checkpoint means, and three of them as one expert.

N are the output channels, K the inputs. Which kind a matrix is says what the operator can hold without a rounding.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.numerics.mx import GROUP, Elem, decode_bytes, e8m0_value


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


@dataclass(frozen=True, slots=True)
class MxMatrix:
    """codes uint8 [N, K], e2m1 packed [N, K/2] with the even input low; scale uint8 E8M0 [N, ceil(K/32)]."""

    codes: Tensor
    scale: Tensor
    elem: Elem


@dataclass(frozen=True, slots=True)
class RealMatrix:
    """Values float32 [N, K] of codes whose scales are neither one per channel nor powers of two per 32 inputs."""

    values: Tensor


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


def split_rows(matrix: Matrix, parts: int) -> list[Matrix]:
    """The matrix as this many of equal rows, in the same memory."""
    values = {field.name: getattr(matrix, field.name) for field in fields(matrix)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    pieces: Any = zip(*(tensor.chunk(parts) for tensor in tensors.values()), strict=True)
    return [replace(matrix, **dict(zip(tensors, piece, strict=True))) for piece in pieces]


def join_expert(gate: Matrix, up: Matrix, down: Matrix, where: str) -> Experts:
    """The three projections of an expert -> canonical experts of one, gate rows first.

    A matrix of another kind than its neighbours is no expert that the operator can hold, so it is rejected; so are two
    widths of integers. Real values become dense float32.

    Args:
        where: the expert's name, for the message.

    Raises:
        CheckpointError: the projections are stored in different ways.
    """
    kinds = {_kind(gate), _kind(up), _kind(down)}
    if len(kinds) > 1:
        named = ", ".join(f"{name} {_kind(m)}" for name, m in (("gate", gate), ("up", up), ("down", down)))
        raise CheckpointError(
            f"{where}: projections stored in different ways ({named}); expected one way for all three. Quantise the "
            "whole expert alike, or none of it."
        )
    if isinstance(gate, IntMatrix) and isinstance(up, IntMatrix) and isinstance(down, IntMatrix):
        scale = torch.cat([gate.scale, up.scale])
        codes = torch.cat([gate.codes, up.codes])
        return IntExperts(codes[None], scale[None], down.codes[None], down.scale[None], gate.bits)
    if isinstance(gate, MxMatrix) and isinstance(up, MxMatrix) and isinstance(down, MxMatrix):
        codes, scale = torch.cat([gate.codes, up.codes]), torch.cat([gate.scale, up.scale])
        return MxExperts(codes[None], scale[None], down.codes[None], down.scale[None], gate.elem)
    halves = [_plain(gate), _plain(up)]
    return DenseExperts(torch.cat(halves)[None], _plain(down)[None])


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
