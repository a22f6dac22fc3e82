"""Integers and FP4 with scales per group of inputs: values that no use case holds exactly, read into real numbers.

compressed-tensors `pack-quantized`, GPTQ, AWQ, AutoRound, and NVFP4 of three tools. A single symmetric group over all
inputs is a scale per channel, and then an exact INT4 or INT8 matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.matrix import IntMatrix, Matrix, RealMatrix
from vllm_megamoe.checkpoint.stored.part import ANY, CODES_FP8, FLOATS, Part, anything, positive, signed
from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.numerics.mx import decode_bytes

_INT32 = (torch.int32,)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_NVFP4_GROUP = 16


def _unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [R, W] -> unsigned numbers int32 [R, W * 32 / bits], the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def _grouped(codes: Tensor, scale: Tensor, groups: Tensor, bits: Literal[4, 8]) -> Matrix:
    """Codes with their zero points taken away [N, K], scales [N, G], the group of each input int64 [K].

    With one group a row they are integers with a scale per channel; what a zero point moved beyond 4 bits fits 8.
    """
    if scale.shape[1] == 1 and bool((scale > 0).all()):
        least, most = int(codes.min()), int(codes.max())
        for width in (4, 8):
            if bits <= width and -(1 << (width - 1)) <= least and most < 1 << (width - 1):
                return IntMatrix(codes.to(torch.int8), scale[:, 0].contiguous(), 4 if width == 4 else 8)
    return RealMatrix(codes.float() * scale[:, groups])


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
        if "weight_zero_point" in tensors:
            zero = tensors["weight_zero_point"]
            if zero.dtype == torch.int32:
                zero = _unpack(zero.t().contiguous(), self.bits).t()[:rows] - half
            codes = codes - zero.to(torch.int32)[:, groups]
        return _grouped(codes, scale, groups, self.bits)


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
        zero = torch.full((rows, scale.shape[1]), 1 << (self.bits - 1), dtype=torch.int32)
        if "qzeros" in tensors:
            zero = _unpack(tensors["qzeros"], self.bits).t()[:rows] + int(self.zero_is_one_less)
        return _grouped(codes - zero[:, groups], scale, groups, self.bits)


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
        zero = torch.full((scale.shape[1], rows), 8, dtype=torch.int32)
        if "qzeros" in tensors:
            zero = _awq_channels(tensors["qzeros"])
        return _grouped(codes.t() - zero.t()[:, groups], scale, groups, 4)


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
        return RealMatrix(values * scale.repeat_interleave(_NVFP4_GROUP, dim=1))
