"""BF16 experts become the codes and scales that an independent quantiser gives, with distinct scales everywhere."""

import numpy as np
import pytest
import torch
from oracle import packing, quantisers
from oracle.formats import to_bf16

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import IntExperts, MxExperts
from vllm_megamoe.experts.convert import MX_WEIGHTS, quantise_expert
from vllm_megamoe.profiles.use_cases import UseCase

HIDDEN, WIDTH = 96, 64


@pytest.fixture
def weights() -> tuple[np.ndarray, np.ndarray]:
    """w13 [2I, H] and w2 [H, I] that bf16 holds; each row and each group of 32 has a size of its own, one row is 0."""
    rng = np.random.default_rng(5)

    def uneven(rows: int, columns: int) -> np.ndarray:
        groups = np.exp2(rng.integers(-9, 3, (rows, columns // 32))).repeat(32, axis=1)
        return to_bf16(np.float32(rng.standard_normal((rows, columns)) * groups))

    w13, w2 = uneven(2 * WIDTH, HIDDEN), uneven(HIDDEN, WIDTH)
    w13[3] = 0
    return w13, w2


@pytest.mark.parametrize("use_case", [UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP])
def test_mx_codes_and_scales(use_case: UseCase, weights: tuple[np.ndarray, np.ndarray]) -> None:
    got = quantise_expert(*(torch.from_numpy(w).to(torch.bfloat16) for w in weights), use_case)
    assert isinstance(got, MxExperts)
    # vllm-ascend and operator_readme.txt: A8W8-FP takes E4M3 here, the FP4 use cases E2M1
    assert got.elem == ("e4m3" if use_case is UseCase.A8W8_FP else "e2m1")
    for matrix, codes, scales in zip(weights, (got.w13, got.w2), (got.w13_scale, got.w2_scale), strict=True):
        want, want_scales = quantisers.mx_encode(matrix, got.elem)
        packed = packing.pack_nibbles(want) if got.elem == "e2m1" else want
        assert np.array_equal(codes[0].numpy(), packed)
        assert np.array_equal(scales[0].numpy(), want_scales)


def test_int8_codes_and_scales(weights: tuple[np.ndarray, np.ndarray]) -> None:
    """amax / 127 per output channel, half-even; a channel of zeros has scale 1."""
    got = quantise_expert(*(torch.from_numpy(w).to(torch.bfloat16) for w in weights), UseCase.A8W8_INT)
    assert isinstance(got, IntExperts)
    for matrix, codes, scales in zip(weights, (got.w13, got.w2), (got.w13_scale, got.w2_scale), strict=True):
        amax = np.abs(matrix).max(axis=1)
        scale = np.where(amax > 0, amax / np.float32(127), np.float32(1))
        assert np.array_equal(scales[0].numpy(), scale)
        assert np.array_equal(codes[0].numpy(), np.rint(matrix / scale[:, None]))


def test_int4_from_bf16_is_rejected(weights: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match=r"a8w4-int; expected one of a16w16, a8w8-int, a8w8-fp, a8w4-fp, a4w4-fp"):
        quantise_expert(*(torch.from_numpy(w) for w in weights), UseCase.A8W4_INT)


def test_the_buffers_type_is_that_of_the_weights() -> None:
    """A8W8-FP wants weights of the dispatched type (op tiling arch35); its buffers are made for E4M3."""
    from vllm_megamoe.profiles.use_cases import USE_CASES

    assert USE_CASES[UseCase.A8W8_FP].dispatch_quant_out_dtype == 256 + 36  # ACL FLOAT8_E4M3FN
    assert MX_WEIGHTS[UseCase.A8W8_FP] == "e4m3"
