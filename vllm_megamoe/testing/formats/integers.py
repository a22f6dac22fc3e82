"""int8 and int4 schemes: msModelSlim, compressed-tensors, Quark.

Formulas: docs/checkpoints.md and the tools that it names.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_megamoe.testing.formats.address import INT4, INT8, Spot, bfloat16_scales, float32_scales
from vllm_megamoe.testing.formats.scheme import Scheme, Written, of_integers, words

SLICES = 16
"""msModelSlim stores the scale_bias of a down projection in 16 partial sums over K."""

GROUP = 32


def _i8(codes: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(codes.astype(np.int8))


def msmodelslim_int8(dtype: torch.dtype = torch.float32) -> Callable[[Spot], Written]:
    """W8A8_DYNAMIC; the old backend writes its scales in bfloat16."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(INT8)
        scales = float32_scales if dtype is torch.float32 else bfloat16_scales
        scale = scales(spot, INT8, spot.n, 1)
        tensors = {"weight": _i8(codes), "weight_scale": scale, "weight_offset": torch.zeros(spot.n, 1, dtype=dtype)}
        return of_integers(tensors, codes, scale, "int8")

    return write


def _static(spot: Spot, dynamic_too: bool) -> Written:
    """W8A8: deq_scale = input_scale * weight scale; the input's scale is a power of two, so that nothing rounds."""
    codes = spot.codes(INT8)
    scale = float32_scales(spot, INT8, spot.n, 1)
    step = torch.tensor([2.0**-4])
    tensors = {
        "weight": _i8(codes),
        "quant_bias": torch.from_numpy(-3 * codes.sum(axis=1).astype(np.int32)),
        "deq_scale": scale[:, 0] * step,
        "input_scale": step,
        "input_offset": torch.tensor([3.0]),
    }
    if dynamic_too:
        tensors |= {"weight_scale": scale, "weight_offset": torch.zeros(spot.n, 1)}
    return of_integers(tensors, codes, scale, "int8")


def _int4_tensors(codes: NDArray[np.int64], per_weight: NDArray[np.float64], spot: Spot) -> dict[str, torch.Tensor]:
    """Packed pairs of rows, and scale_bias = 8 * sum of code * scale: one sum, for down 16 of them."""
    byte = (codes[0::2] & 15) | ((codes[1::2] & 15) << 4)
    parts = SLICES if spot.projection == 2 else 1
    bias = 8 * (codes * per_weight).reshape(spot.n, parts, -1).sum(axis=2)
    return {
        "weight": torch.from_numpy(byte.astype(np.uint8).view(np.int8)),
        "weight_offset": torch.zeros(spot.n, 1),
        "scale_bias": torch.from_numpy(bias.astype(np.float32)),
    }


def _int4_channel(spot: Spot) -> Written:
    """W4A8_DYNAMIC 1.0.0."""
    codes = spot.codes(INT4)
    scale = float32_scales(spot, INT4, spot.n, 1)
    tensors = _int4_tensors(codes, scale.double().numpy(), spot) | {"weight_scale": scale}
    return of_integers(tensors, codes, scale, "int4")


def _int4_old(spot: Spot) -> Written:
    """W4A8_DYNAMIC before 1.0.0: one code per byte, no scale_bias."""
    codes = spot.codes(INT4)
    scale = float32_scales(spot, INT4, spot.n, 1)
    tensors = {"weight": _i8(codes), "weight_scale": scale, "weight_offset": torch.zeros(spot.n, 1)}
    return of_integers(tensors, codes, scale, "int4")


def two_stage(packed: bool, integer: bool) -> Callable[[Spot], Written]:
    """W4A8_DYNAMIC in groups: w = code * second * scale. Integer second scales of 4 to 15 make an int8 tensor."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(INT4)
        scale = float32_scales(spot, INT8, spot.n, 1)
        digits = spot.digits(12, spot.n, spot.k // GROUP)
        second = digits + 4.0 if integer else digits + 4.3125  # a code times 5/16 is no integer
        inner = codes * np.repeat(second, GROUP, axis=1)
        per_weight = np.repeat(second, GROUP, axis=1) * scale.double().numpy()
        tensors = (
            _int4_tensors(codes, per_weight, spot)
            if packed
            else {"weight": _i8(codes), "weight_offset": torch.zeros(spot.n, 1)}
        )
        tensors |= {
            "weight_scale": scale,
            "weight_scale_second": torch.from_numpy(second.astype(np.float32)),
            "weight_offset_second": torch.zeros(second.shape, dtype=torch.int64 if packed else torch.float32),
        }
        if integer:
            return of_integers(tensors, inner.astype(np.int64), scale, "int8")
        return Written(tensors, inner * scale.double().numpy())

    return write


def ct_int8(per_tensor: bool, one_dimension: bool = False) -> Callable[[Spot], Written]:
    """compressed-tensors W8A8, Quark int8: bfloat16 scale per channel (Quark: [N]) or one for the tensor."""

    def write(spot: Spot) -> Written:
        codes = spot.codes(INT8)
        scale = bfloat16_scales(spot, INT8, *((1,) if per_tensor else (spot.n,) if one_dimension else (spot.n, 1)))
        return of_integers({"weight": _i8(codes), "weight_scale": scale}, codes, scale, "int8")

    return write


def _ct_int4(spot: Spot) -> Written:
    """compressed-tensors W4A8 per channel: an int4 code per int8 byte."""
    codes = spot.codes(INT4)
    scale = bfloat16_scales(spot, INT4, spot.n, 1)
    return of_integers({"weight": _i8(codes), "weight_scale": scale}, codes, scale, "int4")


def _ct_int4_group(spot: Spot) -> Written:
    codes = spot.codes(INT4)
    scale = bfloat16_scales(spot, INT4, spot.n, spot.k // GROUP)
    values = codes * np.repeat(scale.double().numpy(), GROUP, axis=1)
    return Written({"weight": _i8(codes), "weight_scale": scale}, values)


def ct_packed(
    bits: int = 4, group: int = GROUP, zero_points: bool = False, shuffled: bool = False
) -> Callable[[Spot], Written]:
    """compressed-tensors pack-quantized; group 0 is one per row. Zero points of -5 to 6; shuffled: a g_idx."""

    def write(spot: Spot) -> Written:
        alphabet = INT4 if bits == 4 else INT8
        codes, offset = spot.codes(alphabet), 1 << (bits - 1)
        groups = spot.k // group if group else 1
        scale = bfloat16_scales(spot, alphabet, spot.n, groups)
        group_of = np.arange(spot.k) // (group or spot.k)
        tensors = {
            "weight_packed": words(codes + offset, bits),
            "weight_scale": scale,
            "weight_shape": torch.tensor([spot.n, spot.k], dtype=torch.int64),
        }
        zero = np.zeros((spot.n, groups), np.int64)
        if zero_points:
            zero = spot.digits(12, spot.n, groups) - 5
            tensors["weight_zero_point"] = words((zero + offset).T, bits).T.contiguous()
        if shuffled:
            group_of = np.random.default_rng(spot.expert * 3 + spot.projection).permutation(group_of)
            tensors["weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        difference = codes - zero[:, group_of]
        if group:
            return Written(tensors, difference * scale.double().numpy()[:, group_of])
        return of_integers(tensors, difference, scale, "int8" if zero_points or bits == 8 else "int4")

    return write


W8A8_DYNAMIC = Scheme("msmodelslim-w8a8-dynamic", "int8", INT8, msmodelslim_int8(), "W8A8_DYNAMIC")
W8A8_OLD = Scheme("msmodelslim-w8a8-dynamic", "int8", INT8, msmodelslim_int8(torch.bfloat16), "W8A8_DYNAMIC", 127, 128)
W8A8_STATIC = Scheme("msmodelslim-w8a8", "int8", INT8, lambda spot: _static(spot, False), "W8A8")
W8A8_MIX = Scheme("msmodelslim-w8a8-mix", "int8", INT8, lambda spot: _static(spot, True), "W8A8_MIX")
W4A8_DYNAMIC = Scheme("msmodelslim-w4a8-dynamic", "int4", INT4, _int4_channel, "W4A8_DYNAMIC")
W4A8_OLD = Scheme("msmodelslim-w4a8-dynamic-old", "int4", INT4, _int4_old, "W4A8_DYNAMIC", version="")
W4A8_GROUP = Scheme(
    "msmodelslim-w4a8-dynamic-group",
    "int4-two-stage",
    INT4,
    two_stage(True, True),
    "W4A8_DYNAMIC",
    12,
    GROUP,
    group_size=GROUP,
)
W4A8_GROUP_ROUNDS = Scheme(
    "msmodelslim-w4a8-dynamic-group",
    "int4-two-stage",
    INT4,
    two_stage(True, False),
    "W4A8_DYNAMIC",
    12,
    GROUP,
    group_size=GROUP,
)
W4A8_OLD_GROUP = Scheme(
    "msmodelslim-w4a8-dynamic-old-group",
    "int4-two-stage",
    INT4,
    two_stage(False, True),
    "W4A8_DYNAMIC",
    12,
    GROUP,
    version="",
    group_size=GROUP,
)
W4A16 = Scheme("msmodelslim-w4a16", "int4-group", INT4, ct_packed(), "W4A16", 127, GROUP, group_size=GROUP)

CT_W8A8 = Scheme("compressed-tensors-w8a8", "int8", INT8, ct_int8(False), "", 127, 32)
CT_W8A8_TENSOR = Scheme("compressed-tensors-w8a8", "int8", INT8, ct_int8(True), "", 127, 64)
CT_W8A16 = Scheme("compressed-tensors-w8a16", "int8", INT8, ct_packed(8, 0), "", 127, 32)
CT_W4A8 = Scheme("compressed-tensors-w4a8", "int4", INT4, _ct_int4, "", 127, 32)
CT_W4A8_GROUP = Scheme("compressed-tensors-w4a8-group", "int4-group", INT4, _ct_int4_group, "", 127, GROUP)
CT_W4A16 = Scheme("compressed-tensors-w4a16", "int4", INT4, ct_packed(4, 0), "", 127, 32)
CT_W4A16_ASYM = Scheme("compressed-tensors-w4a16", "int8", INT4, ct_packed(4, 0, True), "", 127, 32)
CT_W4A16_GROUP = Scheme("compressed-tensors-w4a16-group", "int4-group", INT4, ct_packed(), "", 127, GROUP)
CT_W4A16_GROUP_ASYM = Scheme(
    "compressed-tensors-w4a16-group", "int4-group", INT4, ct_packed(zero_points=True), "", 12, GROUP
)
CT_W4A16_ACTORDER = Scheme(
    "compressed-tensors-w4a16-group", "int4-group", INT4, ct_packed(zero_points=True, shuffled=True), "", 12, GROUP
)
QUARK_INT8 = Scheme("quark-int8", "int8", INT8, ct_int8(False, one_dimension=True), "", 127, 32)
QUARK_INT8_TENSOR = Scheme("quark-int8", "int8", INT8, ct_int8(True), "", 127, 64)
