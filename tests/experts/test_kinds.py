"""Steps between kinds: the codes and scales that an independent quantiser gives, and exact steps that change no value."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from oracle import packing, quantisers
from oracle.formats import to_bf16

from vllm_megamoe.experts.canonical import DenseExperts, IntExperts, MxExperts
from vllm_megamoe.experts.kinds import to_kind
from vllm_megamoe.profiles.use_cases import UseCase

EXPERTS, HIDDEN, WIDTH = 3, 96, 64
F32 = NDArray[np.float32]


@pytest.fixture
def weights() -> tuple[F32, F32]:
    """w13 [E, 2I, H] and w2 [E, H, I] that bf16 holds; every expert, row and group of 32 has a size of its own.

    Rows that are 0, or 0 beside one value, are among them.
    """
    rng = np.random.default_rng(5)

    def uneven(experts: int, rows: int, columns: int) -> F32:
        groups = np.exp2(rng.integers(-9, 3, (experts, rows, columns // 32))).repeat(32, axis=2)
        return to_bf16(np.float32(rng.standard_normal((experts, rows, columns)) * groups))

    w13, w2 = uneven(EXPERTS, 2 * WIDTH, HIDDEN), uneven(EXPERTS, HIDDEN, WIDTH)
    w13[0, 3] = 0
    w13[1, 4] = 0
    w13[1, 4, 7] = -2.5
    return w13, w2


def dense(weights: tuple[F32, F32]) -> DenseExperts:
    return DenseExperts(*(torch.from_numpy(w).to(torch.bfloat16) for w in weights))


@pytest.mark.parametrize("use_case", [UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP])
def test_mx_codes_and_scales(use_case: UseCase, weights: tuple[F32, F32]) -> None:
    got = to_kind(dense(weights), use_case)
    assert isinstance(got, MxExperts)
    # vllm-ascend and operator_readme.txt: A8W8-FP takes E4M3 here, the FP4 use cases E2M1
    assert got.elem == ("e4m3" if use_case is UseCase.A8W8_FP else "e2m1")
    for matrix, codes, scales in zip(weights, (got.w13, got.w2), (got.w13_scale, got.w2_scale), strict=True):
        for e in range(EXPERTS):
            expected, expected_scales = quantisers.mx_encode(matrix[e], got.elem)
            packed = packing.pack_nibbles(expected) if got.elem == "e2m1" else expected
            assert np.array_equal(codes[e].numpy(), packed)
            assert np.array_equal(scales[e].numpy(), expected_scales)


@pytest.mark.parametrize(("use_case", "largest"), [(UseCase.A8W8_INT, 127), (UseCase.A8W4_INT, 7)])
def test_integer_codes_and_scales(use_case: UseCase, largest: int, weights: tuple[F32, F32]) -> None:
    """amax / 127, in 4 bits amax / 7, per output channel, half-even; a channel of zeros has scale 1."""
    got = to_kind(dense(weights), use_case)
    assert isinstance(got, IntExperts)
    assert got.bits == (8 if largest == 127 else 4)
    for matrix, codes, scales in zip(weights, (got.w13, got.w2), (got.w13_scale, got.w2_scale), strict=True):
        amax = np.abs(matrix).max(axis=2)
        scale = np.where(amax > 0, amax / np.float32(largest), np.float32(1))
        assert scales.dtype == torch.float32
        assert np.array_equal(scales.numpy(), scale)
        expected = np.rint(matrix / scale[:, :, None])
        assert np.array_equal(codes.numpy(), expected)
        assert (expected.min(), expected.max()) == (-largest, largest)


def test_bf16_stays_what_it_is(weights: tuple[F32, F32]) -> None:
    experts = dense(weights)
    assert to_kind(experts, UseCase.A16W16) is experts


def test_the_buffers_type_is_that_of_the_weights() -> None:
    """A8W8-FP wants weights of the dispatched type (op tiling arch35); its buffers are made for E4M3."""
    from vllm_megamoe.profiles.use_cases import USE_CASES

    assert USE_CASES[UseCase.A8W8_FP].dispatch_quant_out_dtype == 256 + 36  # ACL FLOAT8_E4M3FN


def ints(bits: int) -> IntExperts:
    """Every code of the width in every expert, each channel with a scale of its own."""
    span = 2 ** (bits - 1)
    codes = torch.arange(-span, span, dtype=torch.int16).to(torch.int8)
    w13 = codes.repeat(EXPERTS * 4 * 256 // len(codes)).view(EXPERTS, 4, 256)
    w2 = codes.repeat(EXPERTS * 256 * 2 // len(codes)).view(EXPERTS, 256, 2)
    scales = torch.arange(1.0, EXPERTS * 260 + 1)
    return IntExperts(
        w13, scales[: EXPERTS * 4].view(EXPERTS, 4), w2, scales[EXPERTS * 4 :].view(EXPERTS, 256), 8 if bits == 8 else 4
    )


def mx(elem: str) -> MxExperts:
    """Every byte in every expert, each group with a scale of its own."""
    per_byte = 2 if elem == "e2m1" else 1
    columns, narrow = 256 // per_byte, 32 // per_byte
    w13 = torch.arange(EXPERTS * 4 * columns).view(EXPERTS, 4, columns)
    w2 = torch.arange(EXPERTS * 256 * 2 * narrow).view(EXPERTS, 256, 2 * narrow)
    w13, w2 = w13.to(torch.uint8), w2[:, :, :narrow].reshape(EXPERTS, 256, narrow).to(torch.uint8)
    w13 = torch.cat([w13[:, :2], w13[:, 2:]], dim=1)
    s13 = torch.arange(EXPERTS * 4 * 8).view(EXPERTS, 4, 8).to(torch.uint8)
    s2 = torch.arange(100, 100 + EXPERTS * 256).view(EXPERTS, 256, 1).to(torch.uint8)
    return MxExperts(w13[:, :2], s13[:, :2], w2[:, :, : narrow // 32 or narrow], s2, elem)  # type: ignore[arg-type]


EXACT = {
    "int8": (UseCase.A8W8_INT,),
    "int4": (UseCase.A8W8_INT, UseCase.A8W4_INT),
    "e4m3": (UseCase.A8W8_FP,),
    "e5m2": (UseCase.A8W8_FP,),
    "e2m1": (UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP),
}
