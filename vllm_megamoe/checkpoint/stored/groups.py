"""Integers and FP4 with scales per group of inputs: values that no use case holds exactly, read into real numbers.

compressed-tensors, GPTQ, AWQ, AutoRound, and NVFP4 of three tools. A single group over all inputs is a scale per
channel, and then an exact INT4 matrix, or an INT8 one where zero points moved the codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.matrix import IntMatrix, Matrix, RealMatrix
from vllm_megamoe.checkpoint.stored.part import ANY, CODES_FP8, FLOATS, Part, anything, matrix, positive, signed
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.numerics.mx import decode_bytes

_INT32 = (torch.int32,)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_NVFP4_GROUP = 16


def _unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [R, W] -> unsigned numbers int32 [R, W * 32 / bits], the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def _grouped(
    codes: Tensor, zero: Tensor | None, scale: Tensor, groups: Tensor, bits: Literal[4, 8], where: str
) -> Matrix:
    """Codes [N, K] and their zero points [N, G] (None: all 0), scales [N, G], the group of each input int64 [K].

    With one group a row they are integers with a scale per channel. INT4 with zero points is INT8 (-15 to 15), whatever
    codes a single matrix happens to have; INT8 with zero points is where all codes fit, which only they can tell. A
    scale below 0 goes into the codes.
    """
    moved = zero is not None and bool((zero != 0).any())
    if zero is not None and moved:
        codes = codes - zero[:, groups]
    if scale.shape[1] == 1:
        codes, channel = codes * torch.sign(scale).to(codes.dtype), scale[:, 0].abs().contiguous()
        least, most = int(codes.min()), int(codes.max())
        four = bits == 4 and not moved and most <= 7
        if four or -128 <= least <= most <= 127:
            return IntMatrix(codes.to(torch.int8), channel, 4 if four else 8)
        return RealMatrix(codes.float() * channel[:, None], f"{where} has codes {least} to {most} beside zero points")
    return RealMatrix(codes.float() * scale[:, groups], f"{where} has {scale.shape[1]} scales in an output channel")


def _group_of(columns: int, groups: int, where: str) -> Tensor:
    if groups < 1 or columns % groups:
        raise CheckpointError(f"{where} has {groups} groups; expected a number that divides {columns} inputs.")
    return torch.arange(columns) // (columns // groups)


def _indexed(index: Tensor, columns: int, groups: int, where: str) -> Tensor:
    """g_idx: the group of each input, int64 [K]; -1 stands in files without reordering."""
    found = index.to(torch.int64)
    if bool((found == -1).all()):
        return _group_of(columns, groups, where)
    if int(found.min()) < 0 or int(found.max()) >= groups:
        raise CheckpointError(
            f"{where} points at group {int(found.max())}; expected 0 to {groups - 1}. The checkpoint is damaged."
        )
    return found


@dataclass(frozen=True, slots=True)
class CtPacked:
    """compressed-tensors `pack-quantized`: `weight_packed` int32 [N, ceil(K * bits / 32)], value + 2^(bits - 1) inside.

    `weight_zero_point` int32 [ceil(N * bits / 32), G] is packed along N; `weight_g_idx` reorders inputs.
    """

    bits: Literal[4, 8] = 4

    @property
    def parts(self) -> tuple[Part, ...]:
        per_word = 32 // self.bits
        return (
            Part("weight_packed", _INT32, lambda n, k: ((n, -(-k // per_word)),)),
            Part("weight_scale", FLOATS, lambda n, k: ((n, ANY), (n,))),
            Part("weight_shape", (torch.int64, torch.int32), lambda n, k: ((2,),), required=False),
            Part("weight_zero_point", (torch.int32, torch.int8), anything, required=False),
            Part("weight_g_idx", (torch.int32, torch.int64), lambda n, k: ((k,),), required=False),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        if "weight_shape" in tensors and tensors["weight_shape"].tolist() != [rows, columns]:
            raise CheckpointError(
                f"{where}.weight_shape is {tensors['weight_shape'].tolist()}; expected [{rows}, {columns}]. Is "
                "config.json that of this checkpoint?"
            )
        half = 1 << (self.bits - 1)
        codes = _unpack(tensors["weight_packed"], self.bits)[:, :columns] - half
        scale = positive(tensors["weight_scale"], f"{where}.weight_scale").reshape(rows, -1)
        groups = _groups(tensors, "weight_g_idx", columns, scale.shape[1], where)
        zero = tensors.get("weight_zero_point")
        if zero is not None and zero.dtype == torch.int32:
            zero = _unpack(zero.t().contiguous(), self.bits).t()[:rows] - half
        return _grouped(codes, None if zero is None else zero.to(torch.int32), scale, groups, self.bits, where)


@dataclass(frozen=True, slots=True)
class CtBytes:
    """compressed-tensors `int-quantized` in groups or with zero points: a code of 4 or 8 bits a byte, int8 [N, K]."""

    bits: Literal[4, 8] = 4

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("weight", (torch.int8,), matrix()),
            Part("weight_scale", FLOATS, anything),
            Part("weight_zero_point", (torch.int8, torch.int32), anything, required=False),
            Part("weight_g_idx", (torch.int32, torch.int64), lambda n, k: ((k,),), required=False),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        scale = positive(tensors["weight_scale"], f"{where}.weight_scale").reshape(rows, -1)
        groups = _groups(tensors, "weight_g_idx", columns, scale.shape[1], where)
        zero = tensors.get("weight_zero_point")
        zero = None if zero is None else zero.reshape(rows, -1).to(torch.int32)
        return _grouped(tensors["weight"].to(torch.int32), zero, scale, groups, self.bits, where)


def _groups(tensors: Mapping[str, Tensor], index: str, columns: int, groups: int, where: str) -> Tensor:
    if index in tensors:
        return _indexed(tensors[index], columns, groups, f"{where}.{index}")
    return _group_of(columns, groups, f"{where}: scales")


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ: `qweight` int32 [K * bits / 32, N] packed along K, `scales` [G, N], `qzeros` packed along N, `g_idx` [K].

    Attributes:
        bits: 4 or 8.
        zero_is_one_less: version 1 of the format stores the zero point minus one (v2 stores it as it is).
    """

    bits: Literal[4, 8] = 4
    zero_is_one_less: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        per_word = 32 // self.bits
        return (
            Part("qweight", _INT32, lambda n, k: ((k // per_word, n),)),
            Part("scales", FLOATS, lambda n, k: ((ANY, n), (n,))),
            Part("qzeros", _INT32, lambda n, k: ((ANY, -(-n // per_word)),), required=False),
            Part("g_idx", (torch.int32, torch.int64), lambda n, k: ((k,),), required=False),
            Part("bias", FLOATS, anything, required=False),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        _no_bias(tensors, where)
        codes = _unpack(tensors["qweight"].t().contiguous(), self.bits)
        scale = signed(tensors["scales"], f"{where}.scales").reshape(-1, rows).t()
        groups = _groups(tensors, "g_idx", columns, scale.shape[1], where)
        half, zero = 1 << (self.bits - 1), None
        if "qzeros" in tensors:
            zero = _unpack(tensors["qzeros"], self.bits).t()[:rows] + int(self.zero_is_one_less) - half
        return _grouped(codes - half, zero, scale, groups, self.bits, where)


@dataclass(frozen=True, slots=True)
class Awq:
    """AWQ: `qweight` int32 [K, N/8], nibble i of a word is channel 0, 2, 4, 6, 1, 3, 5, 7; zero points alike."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part("qweight", _INT32, lambda n, k: ((k, n // 8),)),
            Part("scales", FLOATS, lambda n, k: ((ANY, n), (n,))),
            Part("qzeros", _INT32, lambda n, k: ((ANY, n // 8),), required=False),
            Part("bias", FLOATS, anything, required=False),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        _no_bias(tensors, where)
        codes = _awq_channels(tensors["qweight"])
        scale = signed(tensors["scales"], f"{where}.scales").reshape(-1, rows).t()
        groups = _group_of(columns, scale.shape[1], f"{where}.scales")
        zero = _awq_channels(tensors["qzeros"]).t() - 8 if "qzeros" in tensors else None
        return _grouped(codes.t() - 8, zero, scale, groups, 4, where)


def _awq_channels(words: Tensor) -> Tensor:
    """int32 [R, N/8] -> unsigned [R, N] with channels in order."""
    found = _unpack(words, 4).view(words.shape[0], -1, 8)
    channels = torch.empty_like(found)
    channels[..., list(_AWQ_ORDER)] = found
    return channels.flatten(1)


def _no_bias(tensors: Mapping[str, Tensor], where: str) -> None:
    if "bias" in tensors and bool((tensors["bias"] != 0).any()):
        raise CheckpointError(
            f"{where}.bias is not 0; expected experts without bias. The operator has no place for it."
        )


@dataclass(frozen=True, slots=True)
class NvFp4:
    """NVFP4: e2m1 packed [N, K/2], e4m3 scales [N, K/16], and one factor for all.

    compressed-tensors divides by `weight_global_scale`, ModelOpt multiplies by `weight_scale_2`.
    """

    weight: str = "weight_packed"
    factor: str = "weight_global_scale"
    divides: bool = True
    more: tuple[str, ...] = ("input_global_scale", "input_scale")

    @property
    def parts(self) -> tuple[Part, ...]:
        return (
            Part(self.weight, (torch.uint8,), lambda n, k: ((n, k // 2),)),
            Part("weight_scale", CODES_FP8, lambda n, k: ((n, k // _NVFP4_GROUP),)),
            Part(self.factor, FLOATS, lambda n, k: ((1,), ())),
            *(Part(name, FLOATS, anything, required=False) for name in self.more),
        )

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        factor = positive(tensors[self.factor], f"{where}.{self.factor}").reshape(())
        scale = tensors["weight_scale"].float()
        scale = scale / factor if self.divides else scale * factor
        values = decode_bytes(tensors[self.weight], "e2m1")
        why = f"{where}.weight_scale holds a scale for each {_NVFP4_GROUP} inputs, and these are no powers of two"
        return RealMatrix(values * scale.repeat_interleave(_NVFP4_GROUP, dim=1), why)
