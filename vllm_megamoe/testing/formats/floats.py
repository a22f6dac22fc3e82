"""BF16, FP8, MX and NVFP4 schemes of every tool.

Formulas: docs/checkpoints.md and the tools that it names.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_megamoe.testing.formats.address import (
    BF16,
    E2M1,
    E4M3,
    Spot,
    bfloat16_scales,
    e8m0_scales,
    float32_scales,
    stir,
)
from vllm_megamoe.testing.formats.scheme import Scheme, Written, e4m3_tensor, element_values, halves_of_bytes, of_mx

TILE = 128
E8M0 = torch.float8_e8m0fnu


def _bf16(spot: Spot) -> Written:
    if spot.noise:
        weight = torch.from_numpy(spot.random().standard_normal((spot.n, spot.k)) / np.sqrt(spot.k)).bfloat16()
    else:
        weight = torch.from_numpy(spot.codes(BF16).astype(np.int16)).view(torch.bfloat16)
    return Written({"weight": weight}, weight.double().numpy())


def _fp16(spot: Spot) -> Written:
    """float16 of one octave, most of which no bfloat16 holds: ten bits of the address's word."""
    bits = 0x3000 + stir(spot.weight_addresses(), 1024, 2) // 1024 ** (spot.ordinal % 2) % 1024
    weight = torch.from_numpy(bits.astype(np.int16)).view(torch.float16)
    return Written({"weight": weight}, weight.double().numpy())


def mxfp8(
    weight: str = "weight", scale: str = "weight_scale", dtype: torch.dtype = torch.uint8
) -> Callable[[Spot], Written]:
    """E4M3 and a byte per 32 inputs."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(E4M3)
        bytes_ = e8m0_scales(spot, E4M3, spot.n, -(-spot.k // 32))
        return of_mx({weight: e4m3_tensor(codes), scale: bytes_.view(dtype)}, codes, bytes_, "e4m3")

    return write


def mxfp4(
    weight: str = "weight",
    scale: str = "weight_scale",
    dtype: torch.dtype = torch.uint8,
    code: torch.dtype = torch.uint8,
    more: Callable[[Spot], dict[str, torch.Tensor]] = lambda spot: {},
) -> Callable[[Spot], Written]:
    """E2M1 in pairs and a byte per 32 inputs."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(E2M1)
        bytes_ = e8m0_scales(spot, E2M1, spot.n, -(-spot.k // 32))
        tensors = {weight: halves_of_bytes(codes).view(code), scale: bytes_.view(dtype), **more(spot)}
        return of_mx(tensors, codes, bytes_, "e2m1")

    return write


def _tiled(codes: NDArray[np.int64], scale: torch.Tensor) -> NDArray[np.float64]:
    n, k = codes.shape
    every = np.kron(scale.double().numpy(), np.ones((TILE, TILE)))[:n, :k]
    return element_values(codes, "e4m3") * every


def fp8_block(
    scale: str = "weight_scale_inv", power_of_two: bool = False, dtype: torch.dtype = torch.float32, four: bool = False
) -> Callable[[Spot], Written]:
    """Tiles of 128 x 128; `power_of_two`: scales in float32 or E8M0; `four`: ModelOpt's [N/128, 1, K/128, 1]."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(E4M3)
        tiles = (-(-spot.n // TILE), -(-spot.k // TILE))
        if power_of_two:
            bytes_ = e8m0_scales(spot, E4M3, *tiles)
            stored = bytes_.view(E8M0)
            spread = torch.from_numpy(np.kron(bytes_.numpy(), np.ones((TILE, 4), np.uint8)))
            mx = spread[: spot.n, : -(-spot.k // 32)]
            tensors = {"weight": e4m3_tensor(codes), scale: stored if dtype == E8M0 else stored.to(dtype)}
            return of_mx(tensors, codes, mx, "e4m3")
        scales = bfloat16_scales if dtype == torch.bfloat16 else float32_scales
        stored = scales(spot, E4M3, *tiles)
        values = _tiled(codes, stored)
        return Written({"weight": e4m3_tensor(codes), scale: stored[:, None, :, None] if four else stored}, values)

    return write


def fp8_rows(
    per_tensor: bool,
    shape: str = "[N, 1]",
    dtype: torch.dtype = torch.float32,
    static: bool = False,
    offset: bool = False,
) -> Callable[[Spot], Written]:
    """A scale per channel ([N, 1] or [N]) or for the tensor ([1] or [])."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(E4M3)
        size = {"[N, 1]": (spot.n, 1), "[N]": (spot.n,), "[1]": (1,), "[]": (1,)}[shape]
        scales = bfloat16_scales if dtype == torch.bfloat16 else float32_scales
        stored = scales(spot, E4M3, *size)
        values = element_values(codes, "e4m3") * stored.double().numpy().reshape(-1, 1)
        tensors = {"weight": e4m3_tensor(codes), "weight_scale": stored.reshape(()) if shape == "[]" else stored}
        if static:
            tensors["input_scale"] = torch.full_like(tensors["weight_scale"], 0.0625)
        if offset:
            tensors["weight_offset"] = torch.zeros(spot.n, 1)
        return Written(tensors, values)

    assert per_tensor == (shape in ("[1]", "[]"))
    return write


def nvfp4(modelopt: bool, static: bool = True) -> Callable[[Spot], Written]:
    """Groups of 16 with E4M3 scales: the tensor's float multiplies in ModelOpt's files, divides in the others."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(E2M1)
        groups = 0x20 + spot.digits(64, spot.n, spot.k // 16)
        scale = e4m3_tensor(groups)
        top = float32_scales(spot, E2M1, 1)
        stored = top if modelopt else 1 / top
        top64 = stored.double().numpy()
        group = scale.double().numpy() * top64 if modelopt else scale.double().numpy() / top64
        values = element_values(codes, "e2m1") * np.repeat(group, 16, axis=1)
        step = torch.tensor([0.0078125])
        if modelopt:
            tensors = {"weight": halves_of_bytes(codes), "weight_scale": scale, "weight_scale_2": stored.reshape(())}
            return Written(tensors | ({"input_scale": step.reshape(())} if static else {}), values)
        tensors = {"weight_packed": halves_of_bytes(codes), "weight_scale": scale, "weight_global_scale": stored}
        return Written(tensors | ({"input_global_scale": 1 / step} if static else {}), values)

    return write


def _dual(spot: Spot) -> dict[str, torch.Tensor]:
    return {"weight_dual_scale": float32_scales(spot, E2M1, spot.n, 1)}


PLAIN = Scheme("bf16", "bf16", BF16, _bf16)
FLOAT = Scheme("msmodelslim-float", "bf16", BF16, _bf16, "FLOAT")
FP16 = Scheme("fp16", "fp16", BF16, _fp16)
MS_MXFP8 = Scheme("msmodelslim-w8a8-mxfp8", "mxfp8", E4M3, mxfp8(), "W8A8_MXFP8", 16, 32, group_size=32)
MS_W4A8_MXFP = Scheme("msmodelslim-w4a8-mxfp", "mxfp4", E2M1, mxfp4(), "W4A8_MXFP", 16, 32, group_size=32)
MS_W4A4_MXFP4 = Scheme("msmodelslim-w4a4-mxfp4", "mxfp4-a4", E2M1, mxfp4(), "W4A4_MXFP4", 16, 32, group_size=32)
MS_W4A16_MXFP4 = Scheme("msmodelslim-w4a16-mxfp4", "mxfp4", E2M1, mxfp4(), "W4A16_MXFP4", 16, 32, group_size=32)
MS_DUALSCALE = Scheme(
    "msmodelslim-w4a4-mxfp4-dualscale",
    "mxfp4-a4",
    E2M1,
    mxfp4(more=_dual),
    "W4A4_MXFP4_DUALSCALE",
    16,
    32,
    group_size=32,
)
MS_WFP8AFP8 = Scheme("msmodelslim-wfp8afp8-dynamic", "fp8-rows", E4M3, fp8_rows(False, offset=True), "WFP8AFP8_DYNAMIC")
MS_W8A8FP8 = Scheme("msmodelslim-w8a8fp8-dynamic", "fp8-rows", E4M3, fp8_rows(False), "W8A8FP8_DYNAMIC")

BLOCK = Scheme("fp8-block", "fp8-block", E4M3, fp8_block())
BLOCK_BF16 = Scheme("fp8-block", "fp8-block", E4M3, fp8_block(dtype=torch.bfloat16), "", 127, TILE)
BLOCK_UE8M0 = Scheme("fp8-block-ue8m0", "fp8-block-ue8m0", E4M3, fp8_block(power_of_two=True), "", 16, TILE)
BLOCK_E8M0 = Scheme("fp8-block-ue8m0", "fp8-block-ue8m0", E4M3, fp8_block(power_of_two=True, dtype=E8M0), "", 16, TILE)
FP8_TENSOR = Scheme("fp8", "fp8-rows", E4M3, fp8_rows(True, "[1]", torch.bfloat16, static=True), "", 127, TILE)
V4_FP4 = Scheme("deepseek-v4-fp4", "mxfp4", E2M1, mxfp4(scale="scale", dtype=E8M0, code=torch.int8), "", 16, 32)
V4_BLOCK = Scheme("deepseek-v4-fp8", "fp8-block-ue8m0", E4M3, fp8_block("scale", True, E8M0), "", 16, TILE)
V4_EXPERTS_FP8 = Scheme(
    "deepseek-v4-fp8", "fp8-block-ue8m0", E4M3, fp8_block("scale", True, torch.float32), "", 16, TILE
)
MINIMAX_MXFP8 = Scheme("mxfp8", "mxfp8", E4M3, mxfp8(scale="weight_scale_inv"), "", 16, 32)

CT_FP8 = Scheme("compressed-tensors-fp8", "fp8-rows", E4M3, fp8_rows(False, dtype=torch.bfloat16), "", 127, 32)
CT_FP8_TENSOR = Scheme(
    "compressed-tensors-fp8", "fp8-rows", E4M3, fp8_rows(True, "[1]", torch.bfloat16, True), "", 127, TILE
)
CT_FP8_BLOCK = Scheme(
    "compressed-tensors-fp8-block", "fp8-block", E4M3, fp8_block("weight_scale", dtype=torch.bfloat16), "", 127, TILE
)
CT_MXFP8 = Scheme("compressed-tensors-mxfp8", "mxfp8", E4M3, mxfp8(), "", 16, 32)
CT_MXFP4 = Scheme("compressed-tensors-mxfp4", "mxfp4", E2M1, mxfp4("weight_packed"), "", 16, 32)
CT_NVFP4 = Scheme("compressed-tensors-nvfp4", "nvfp4", E2M1, nvfp4(False), "", 64, 16)
MO_MXFP8 = Scheme("modelopt-mxfp8", "mxfp8", E4M3, mxfp8(), "", 16, 32)
MO_MXFP4 = Scheme("modelopt-mxfp4", "mxfp4", E2M1, mxfp4(), "", 16, 32)
MO_W4A8 = Scheme("modelopt-w4a8-mxfp4-fp8", "mxfp4", E2M1, mxfp4(), "", 16, 32)
MO_FP8 = Scheme("modelopt-fp8", "fp8-rows", E4M3, fp8_rows(True, "[]", static=True))
MO_FP8_CHANNEL = Scheme("modelopt-fp8", "fp8-rows", E4M3, fp8_rows(False, "[N]"))
MO_FP8_BLOCK = Scheme("modelopt-fp8-pb-wo", "fp8-block", E4M3, fp8_block("weight_scale", four=True))
MO_NVFP4 = Scheme("modelopt-nvfp4", "nvfp4", E2M1, nvfp4(True), "", 64, 16)
MO_W4A16_NVFP4 = Scheme("modelopt-w4a16-nvfp4", "nvfp4", E2M1, nvfp4(True, static=False), "", 64, 16)
QUARK_MXFP4 = Scheme("quark-mxfp4", "mxfp4", E2M1, mxfp4(), "", 16, 32)
QUARK_FP8 = Scheme("quark-fp8", "fp8-rows", E4M3, fp8_rows(False, "[N]"))
QUARK_FP8_TENSOR = Scheme("quark-fp8", "fp8-rows", E4M3, fp8_rows(True, "[]", static=True))
AR_MXFP8 = Scheme("auto-round-mxfp8", "mxfp8", E4M3, mxfp8(), "", 16, 32)
AR_MXFP4 = Scheme("auto-round-mxfp4", "mxfp4", E2M1, mxfp4("weight_packed"), "", 16, 32)
AR_FP8_BLOCK = Scheme("auto-round-fp8-block", "fp8-block", E4M3, fp8_block(dtype=torch.bfloat16), "", 127, TILE)
