"""GPTQ and AWQ schemes, also as AutoRound packs them.

Formulas: docs/checkpoints.md and the tools that it names.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_megamoe.testing.formats.address import INT4, INT8, Spot, float16_scales
from vllm_megamoe.testing.formats.scheme import Scheme, Written, of_integers, words

GROUP = 32
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""AWQ: nibble i of a word is taken from this column of its eight."""


def _awq_words(codes: NDArray[np.int64]) -> torch.Tensor:
    """[R, N] -> int32 [R, N/8] in AWQ's order."""
    r, n = codes.shape
    return words(codes.reshape(r, n // 8, 8)[:, :, ORDER].reshape(r, n), 4)


def scheme(
    packing: str,
    bits: int = 4,
    group: int = GROUP,
    zero_points: bool = False,
    shuffled: bool = False,
    plain_zero: bool = False,
) -> Callable[[Spot], Written]:
    """One linear; group 0 is one over all of K. Zero points of 2 to 13, else the middle.

    GPTQ stores z - 1 unless `plain_zero` (gptq_v2). A zero point of 0 is not used: its z - 1 has no agreed reading.
    """

    def write(spot: Spot) -> Written:
        alphabet, middle = (INT4, 8) if bits == 4 else (INT8, 128)
        unsigned = spot.codes(alphabet) + middle
        groups = spot.k // group if group else 1
        group_of = np.arange(spot.k) // (group or spot.k)
        scale = float16_scales(spot, alphabet, groups, spot.n)
        zero = np.full((groups, spot.n), middle)
        if zero_points:
            zero = 2 + spot.digits(12, groups, spot.n)
        if packing == "awq":
            tensors = {"qweight": _awq_words(unsigned.T), "qzeros": _awq_words(zero), "scales": scale}
        else:
            if shuffled:
                group_of = np.random.default_rng(spot.expert * 3 + spot.projection).permutation(group_of)
            tensors = {
                "qweight": words(unsigned, bits).T.contiguous(),
                "qzeros": words(zero - (0 if plain_zero else 1), bits),
                "scales": scale,
                "g_idx": torch.from_numpy(group_of.astype(np.int32)),
            }
        difference = unsigned - zero[group_of].T
        if group:
            return Written(tensors, difference * scale.double().numpy()[group_of].T)
        return of_integers(tensors, difference, scale, "int8" if zero_points or bits == 8 else "int4")

    return write


GPTQ = Scheme("gptq-int4", "int4", INT4, scheme("gptq", group=0), "", 1024, 32)
GPTQ_GROUP = Scheme("gptq-int4-group", "int4-group", INT4, scheme("gptq"), "", 1024, GROUP)
GPTQ_ASYM = Scheme("gptq-int4-group", "int4-group", INT4, scheme("gptq", zero_points=True), "", 12, GROUP)
GPTQ_ACTORDER = Scheme(
    "gptq-int4-group", "int4-group", INT4, scheme("gptq", zero_points=True, shuffled=True), "", 12, GROUP
)
GPTQ_V2 = Scheme(
    "gptq-int4-group", "int4-group", INT4, scheme("gptq", zero_points=True, plain_zero=True), "", 12, GROUP
)
GPTQ_INT8 = Scheme("gptq-int8", "int8", INT8, scheme("gptq", 8, 0), "", 1024, 32)
AWQ = Scheme("awq-int4", "int8", INT4, scheme("awq", group=0, zero_points=True), "", 12, 32)
AWQ_GROUP = Scheme("awq-int4-group", "int4-group", INT4, scheme("awq", zero_points=True), "", 12, GROUP)
AR_GPTQ = Scheme("auto-round-int4-group", "int4-group", INT4, scheme("gptq"), "", 1024, GROUP)
AR_GPTQ_CHANNEL = Scheme("auto-round-int4", "int4", INT4, scheme("gptq", group=0), "", 1024, 32)
AR_AWQ = Scheme("auto-round-awq-int4-group", "int4-group", INT4, scheme("awq", zero_points=True), "", 12, GROUP)
