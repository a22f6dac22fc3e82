"""How far numbers may be from their source before no rounding explains it.

Of a conversion: by the steps of the format that it ends in, for every element (`conversion_step`). Of a checkpoint from
its original: by what plain rounding of the same original into codes of that kind loses, times a margin, for every
matrix and every row, and by the largest step of a clipping quantiser for every element (`beyond_format`).

Tools do better and worse than plain rounding. Of 28 checkpoints of five tools the worst matrix lost 1.05 times as much,
the worst row 1.51 times, and the worst element was off by the part of its row's largest value that stands beside its
bound (tests/cli/test_check_fixtures.py measures all three).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.formats import ExpertsFormat
from vllm_megamoe.checkpoint.stored.matrix import DenseMatrix, IntMatrix, Matrix, MxMatrix
from vllm_megamoe.experts.canonical import Kind
from vllm_megamoe.numerics.int8 import WEIGHT_LIMIT, quantise_weight
from vllm_megamoe.numerics.mx import EMAX, GROUP, MAX_VALUE, Elem, mx_dequantise, mx_quantise

MATRIX, ROW = 1.5, 2.5
"""Times the loss of plain rounding."""

ELEMENT: dict[Kind, float] = {
    "dense": 2.0**-8,  # float16 or bfloat16 of a float32 original; measured 0
    "int8": 0.02,  # 0.006: half a step of 127 is 0.004, and scales may be bfloat16
    "int4": 0.5,  # 0.422: msModelSlim's ssz clips
    "e4m3": 0.13,  # 0.122: values from 448 to 512 saturate under the floor rule
    "e5m2": 0.26,
    "e2m1": 0.26,  # 0.200: values from 6 to 8 saturate
}
"""Most that an element may be off, as a part of the largest magnitude of its row."""

_BFLOAT16 = 2.0**-8
"""Scales in bfloat16 move a whole row by up to half of this."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """A matrix that is further from its original than its format explains.

    Attributes:
        error, bound: of what is named in `what`, as parts of the original's size there.
        what: `the matrix`, `row 3` or `the element [3, 7]`.
    """

    error: float
    bound: float
    what: str

    def __str__(self) -> str:
        return f"{self.what} is off by {self.error:.1%}, and its format explains {self.bound:.1%}"


def code_kind(matrix: Matrix, form: ExpertsFormat) -> Kind:
    """The kind of the codes that a matrix was written in; of free scales the format's name tells."""
    if isinstance(matrix, IntMatrix):
        return "int4" if matrix.bits == 4 or _four_bits(form.name) else "int8"
    if isinstance(matrix, MxMatrix):
        return matrix.elem
    if isinstance(matrix, DenseMatrix):
        return "dense"
    if "fp4" in form.name:
        return "e2m1"
    if "fp8" in form.name:
        return "e4m3"
    return "int4" if _four_bits(form.name) else "int8"


def _four_bits(name: str) -> bool:
    return "w4" in name or "int4" in name


def beyond_format(values: Tensor, original: Tensor, matrix: Matrix, form: ExpertsFormat) -> Beyond | None:
    """The worst of what is not explained, None for a sound matrix.

    Args:
        values: float32 [N, K], the numbers of `matrix`.
        original: float32 [N, K], of the unquantised checkpoint.
    """
    kind = code_kind(matrix, form)
    per_tensor = isinstance(matrix, IntMatrix) and bool((matrix.scale == matrix.scale[0]).all())
    plain, off = plain_loss(original, kind, per_tensor), values - original
    largest = original.abs().amax(dim=1, keepdim=True)
    size, row_size = float(original.norm()), original.norm(dim=1)
    found = []
    bound = MATRIX * float(plain.norm()) / max(size, 1e-30) + _BFLOAT16
    found.append(Beyond(float(off.norm()) / max(size, 1e-30), bound, "the matrix"))
    rows = off.norm(dim=1) / row_size.clamp(min=1e-30)
    limits = ROW * plain.norm(dim=1) / row_size.clamp(min=1e-30) + _BFLOAT16
    row = int((rows - limits).argmax())
    found.append(Beyond(float(rows[row]), float(limits[row]), f"row {row}"))
    if not per_tensor:
        parts = off.abs() / largest.clamp(min=1e-30)
        place = divmod(int(parts.argmax()), parts.shape[1])
        found.append(Beyond(float(parts[place]), ELEMENT[kind], f"the element {list(place)}"))
    worst = max(found, key=lambda beyond: beyond.error / beyond.bound)
    # NaN is beyond everything.
    return None if worst.error <= worst.bound else worst


def matrix_bound(original: Tensor, matrix: Matrix, form: ExpertsFormat) -> float:
    """What the format explains of a whole matrix: a part of its rms."""
    plain = plain_loss(original, code_kind(matrix, form), False)
    return MATRIX * float(plain.norm()) / max(float(original.norm()), 1e-30) + _BFLOAT16


def plain_loss(original: Tensor, kind: Kind, per_tensor: bool) -> Tensor:
    """float32 [N, K]: what plain rounding takes from each element: one scale a row (or for all), or MX groups of 32."""
    if kind == "dense":
        return original.to(torch.bfloat16).float() - original
    if kind in ("int8", "int4"):
        rows = original.reshape(1, -1) if per_tensor else original
        codes, scale = quantise_weight(rows, 8 if kind == "int8" else 4)
        return (codes.float() * scale[:, None]).view(original.shape) - original
    codes, scales = mx_quantise(original, _elem(kind))
    return mx_dequantise(codes, scales, _elem(kind)) - original


def conversion_step(values: Tensor, kind: Kind) -> Tensor:
    """float32 [N, K]: the most that rounding these numbers into a kind may move each of them.

    Integers: half a step of the row's scale. bfloat16: half a unit in the last of 8 bits. MX, whose scale is the power
    of two below the largest magnitude of 32 (OCP MX 1.0, 6.3): half the distance of two codes, or what saturates.
    """
    magnitude = values.abs()
    if kind == "dense":
        return magnitude * 2.0**-8
    if kind in ("int8", "int4"):
        step = magnitude.amax(dim=1, keepdim=True) / WEIGHT_LIMIT[8 if kind == "int8" else 4]
        # Quotient and product are rounded in float32 once each.
        return (step / 2 + magnitude * 2.0**-22).expand_as(values)
    elem = _elem(kind)
    rows, columns = values.shape
    groups = torch.nn.functional.pad(magnitude, (0, -columns % GROUP)).view(rows, -1, GROUP)
    # Of bfloat16 numbers the quantiser looks at bfloat16, which may round a magnitude up to the next power of two; of
    # codes with scales at float32, which does not. So codes may be as coarse as of the first, and saturate as of the
    # second.
    largest = groups.amax(dim=2)
    floor = torch.exp2(torch.floor(torch.log2(largest)) - EMAX[elem]).nan_to_num(0.0)
    coarse = torch.exp2(torch.floor(torch.log2(largest.bfloat16().float())) - EMAX[elem]).nan_to_num(0.0)
    # A quantiser that never saturates takes the next power of two there.
    scale = torch.where(largest > coarse * MAX_VALUE[elem], 2 * coarse, coarse)
    scale, floor = (each.repeat_interleave(GROUP, dim=1)[:, :columns] for each in (scale, floor))
    bits = {"e4m3": 3, "e5m2": 2, "e2m1": 1}[elem]
    least_normal = {"e4m3": -6, "e5m2": -14, "e2m1": 0}[elem]
    normal = magnitude * 2.0 ** -(bits + 1)
    subnormal = scale * 2.0 ** (least_normal - bits - 1)
    saturated = (magnitude - floor * MAX_VALUE[elem]).clamp(min=0)
    return torch.maximum(torch.maximum(normal, subnormal), saturated) + magnitude * 2.0**-8


def conversion_steps(before: Sequence[Tensor], after: Sequence[Tensor], kind: Kind, exact: bool) -> float:
    """The largest distance of numbers from those that they were made of, in steps of their kind.

    At most EXACT where nothing is wrong: 0 for an exact conversion, infinite where one moved a number.
    """
    found = 0.0
    for old, new in zip(before, after, strict=True):
        off = (new - old).abs()
        if not bool(torch.isfinite(off).all()):
            return math.inf
        if bool(off.any()):
            step = torch.zeros(()) if exact else conversion_step(old, kind)
            found = max(found, float((off / step).nan_to_num(nan=0.0, posinf=math.inf).max()))
    return found


EXACT = 1.0 + 2.0**-12
"""Steps that a plain rounding may take; the step itself is computed in float32."""


def _elem(kind: Kind) -> Elem:
    assert kind in ("e4m3", "e5m2", "e2m1")
    return kind
