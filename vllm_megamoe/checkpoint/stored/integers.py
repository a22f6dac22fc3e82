"""Integers with a scale per channel or per tensor: msModelSlim's, compressed-tensors' and Quark's INT8 and INT4.

weight = code * scale of its output channel. Scales stay float32 whatever dtype the file has; codes are copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.matrix import IntMatrix, Matrix, PackedInt4Matrix, RealMatrix
from vllm_megamoe.checkpoint.stored.part import (
    FLOATS,
    Part,
    anything,
    matrix,
    per_row,
    positive,
    single,
    zeros,
)
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.layout.packing import sum_int4_rows, unpack_int4_rows

_SYMMETRIC = "the operator has no place for zero points"


@dataclass(frozen=True, slots=True)
class IntPerChannel:
    """int8 codes [N, K], one a byte, and a scale for each channel or one for all.

    compressed-tensors `int-quantized` (W8A8, and W4A8, whose INT4 codes take a byte each), Quark's INT8 (scale [N]),
    msModelSlim W8A8_DYNAMIC and W8A8_MIX (with an offset that must be 0; facts of its v1 writer: all 1608 offsets read
    are 0), and msModelSlim's W4A8 before version 1.0.0 (one INT4 code a byte).

    Attributes:
        bits: of a code.
        offset: whether a `weight_offset` may stand beside the scale.
        more: further parts that the tool writes and the operator does not need.
    """

    bits: Literal[4, 8] = 8
    offset: bool = False
    more: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        scale = Part("weight_scale", FLOATS, lambda n, k: (*per_row(n, k), *single(n, k)))
        found = [Part("weight", (torch.int8,), matrix()), scale]
        if self.offset:
            found.append(Part("weight_offset", (*FLOATS, torch.int8, torch.int32), per_row, required=False))
        unused = (*FLOATS, torch.int8, torch.int32, torch.int64)
        return (*found, *(Part(name, unused, anything, required=False) for name in self.more))

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        if "weight_offset" in tensors:
            zeros(tensors["weight_offset"], f"{where}.weight_offset", _SYMMETRIC)
        codes, scale = tensors["weight"], positive(tensors["weight_scale"], f"{where}.weight_scale")
        if self.bits == 4:
            _four_bits(codes, f"{where}.weight")
        return IntMatrix(codes, scale.reshape(-1).expand(rows).contiguous(), self.bits)


@dataclass(frozen=True, slots=True)
class MsStatic:
    """msModelSlim W8A8 with static activations, of linear layers: q int8 [N, K], y = (xq q + quant_bias) * deq_scale.

    xq = x / input_scale + input_offset, so the weight is q * deq_scale / input_scale. `deq_scale` is float32, or its
    bits in the low half of an int64. `weight_scale` and `weight_offset`, which the tool's older backend adds, are not
    needed.
    """

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("weight", (torch.int8,), matrix()),
            Part("deq_scale", (torch.float32, torch.int64), per_row),
            Part("input_scale", FLOATS, single),
            Part("input_offset", (*FLOATS, torch.int8), single),
            Part("quant_bias", (torch.int32,), per_row),
            Part("weight_scale", FLOATS, per_row, required=False),
            Part("weight_offset", FLOATS, per_row, required=False),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        step = positive(tensors["input_scale"], f"{where}.input_scale").reshape(())
        scale = positive(_float_bits(tensors["deq_scale"]), f"{where}.deq_scale").reshape(rows)
        return IntMatrix(tensors["weight"], scale / step, 8)

    def bias(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """float32 [N], what the layer adds to x W^T: the stored integers without what the input's offset brings."""
        offset = tensors["input_offset"].to(torch.int64).reshape(())
        integers = tensors["quant_bias"].to(torch.int64).reshape(-1)
        whole = integers + offset * tensors["weight"].sum(dim=1, dtype=torch.int64)
        return whole.float() * _float_bits(tensors["deq_scale"]).reshape(-1)


def _float_bits(scale: Tensor) -> Tensor:
    """float32 numbers, or those whose bits are the low halves of int64."""
    return scale.to(torch.int32).view(torch.float32) if scale.dtype == torch.int64 else scale


@dataclass(frozen=True, slots=True)
class MsInt4:
    """msModelSlim W4A8_DYNAMIC, version 1.0.0: two output channels a byte, [N/2, K], the even one low.

    With `weight_scale_second` [N, K/g] the scale of a group is second * scale, and the values are no INT4 matrix of the
    operator; where second * code fits INT8 in whole numbers they are an INT8 one, exactly. `scale_bias` is 8 times the
    sum of code * scale over K, whole or in slices; it is a check only, the operand's bias is computed anew.
    """

    grouped: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        found = [
            Part("weight", (torch.int8,), lambda n, k: ((n // 2, k),)),
            Part("weight_scale", FLOATS, per_row),
            Part("weight_offset", FLOATS, per_row, required=False),
            Part("scale_bias", FLOATS, lambda n, k: ((n, 1), (n, 16), (n,)), required=False),
        ]
        if self.grouped:
            whole = (*FLOATS, torch.int8, torch.int32, torch.int64)
            found += [
                Part("weight_scale_second", FLOATS, anything),
                Part("weight_offset_second", whole, anything, required=False),
            ]
        return tuple(found)

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        for name in ("weight_offset", "weight_offset_second"):
            if name in tensors:
                zeros(tensors[name], f"{where}.{name}", _SYMMETRIC)
        packed = tensors["weight"]
        scale = positive(tensors["weight_scale"], f"{where}.weight_scale").reshape(rows)
        if self.grouped:
            second = positive(tensors["weight_scale_second"], f"{where}.weight_scale_second")
            return _two_stage(unpack_int4_rows(packed), scale, second, f"{where}.weight_scale_second")
        if "scale_bias" in tensors:
            _check_bias(packed, scale, tensors["scale_bias"], f"{where}.scale_bias")
        return PackedInt4Matrix(packed, scale)


@dataclass(frozen=True, slots=True)
class MsInt4Old:
    """msModelSlim W4A8_DYNAMIC before version 1.0.0 with groups: one INT4 code a byte and a second scale per group."""

    @property
    def parts(self) -> tuple[Part, ...]:
        whole = (*FLOATS, torch.int8, torch.int32, torch.int64)
        return (
            Part("weight", (torch.int8,), matrix()),
            Part("weight_scale", FLOATS, per_row),
            Part("weight_offset", FLOATS, per_row, required=False),
            Part("weight_scale_second", FLOATS, anything),
            Part("weight_offset_second", whole, anything, required=False),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        for name in ("weight_offset", "weight_offset_second"):
            if name in tensors:
                zeros(tensors[name], f"{where}.{name}", _SYMMETRIC)
        _four_bits(tensors["weight"], f"{where}.weight")
        scale = positive(tensors["weight_scale"], f"{where}.weight_scale").reshape(rows)
        second = positive(tensors["weight_scale_second"], f"{where}.weight_scale_second")
        return _two_stage(tensors["weight"], scale, second, f"{where}.weight_scale_second")


def _two_stage(codes: Tensor, scale: Tensor, second: Tensor, where: str) -> Matrix:
    """INT4 codes [N, K] times a group's number [N, K/g] times the channel's scale [N].

    Exact in INT8 where every product is a whole number in range (the tool's group numbers are small integers).
    """
    rows, columns = codes.shape
    groups = second.shape[-1] if second.dim() == 2 else 0
    if second.shape != (rows, groups) or not groups or columns % groups:
        raise CheckpointError(
            f"{where} has shape {list(second.shape)}; expected [{rows}, groups] with groups that divide {columns} "
            "inputs. Copy the checkpoint anew."
        )
    wide = codes.float() * second.repeat_interleave(columns // groups, dim=1)
    if bool((wide == wide.round()).all()) and float(wide.abs().max()) <= 127:
        return IntMatrix(wide.to(torch.int8), scale, 8)
    return RealMatrix(wide * scale[:, None], f"{where} times the codes gives numbers that are no codes of INT8")


def _four_bits(codes: Tensor, where: str) -> None:
    least, most = int(codes.min()), int(codes.max())
    if not -8 <= least <= most <= 7:
        raise CheckpointError(
            f"{where} has codes {least}..{most}; expected -8..7 for 4 bits. Is its description right?"
        )


def _check_bias(packed: Tensor, scale: Tensor, stored: Tensor, where: str) -> None:
    """The tool sums in float32, perhaps slice by slice: a relative error of K roundings of 2^-24 is explained.

    Each partial sum is at most 8 * sum |code * scale|, so K * 2^-24 of that bounds the sum's error; scales that the
    tool kept in bfloat16 add 2^-8 of it. The sum itself is no larger, so what differs by less than such a part of it
    needs no look at the codes' magnitudes.
    """
    mine = 8.0 * sum_int4_rows(packed).float() * scale
    theirs = stored.float().reshape(len(scale), -1).sum(dim=1)
    part = 2.0**-8 + packed.shape[1] * 2.0**-24
    apart = (mine - theirs).abs()
    far = ~(apart <= mine.abs() * part)  # NaN is far
    if not bool(far.any()):
        return
    size = 8.0 * unpack_int4_rows(packed).abs().sum(dim=1, dtype=torch.int32).float() * scale
    bad = ~(apart <= size * part)
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise CheckpointError(
            f"{where} is {float(theirs[at])!r} in channel {at}; the codes and scales give {float(mine[at])!r}. The "
            "files do not belong together, or the description names another packing."
        )
