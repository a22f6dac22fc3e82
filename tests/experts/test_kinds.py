"""Steps between kinds: the codes and scales of an independent quantiser, and exact steps that change no value."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from experts.index_rules import make_dense, make_ints, make_mx
from numpy.typing import NDArray
from oracle import packing, quantisers
from oracle.formats import to_bf16

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.steps import reachable, to_kind
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


def made(kind: str, seed: int = 3) -> Experts:
    """Experts of a kind, with every code of a 4-bit format and most of an 8-bit one."""
    rng = np.random.default_rng(seed)
    if kind == "dense":
        return make_dense(rng, EXPERTS, HIDDEN, WIDTH)
    if kind in ("int8", "int4"):
        return make_ints(rng, int(kind[3:]), EXPERTS, HIDDEN, WIDTH)
    return make_mx(rng, kind, EXPERTS, HIDDEN, WIDTH)


KINDS = ("dense", "int8", "int4", "e4m3", "e5m2", "e2m1")
EXACT = {
    "dense": {"a16w16"},
    "int8": {"a8w8-int"},
    "int4": {"a8w8-int", "a8w4-int"},
    "e4m3": {"a8w8-fp", "a16w16"},
    "e5m2": {"a8w8-fp"},
    "e2m1": {"a8w8-fp", "a8w4-fp", "a4w4-fp", "a16w16"},
}
"""Conversions that change no value (docs/operator.md)."""


def values(experts: Experts) -> list[NDArray[np.float64]]:
    """What the experts stand for, w13 and w2, by formulas and ml_dtypes alone."""
    found = []
    for name in ("w13", "w2"):
        w = getattr(experts, name)
        if isinstance(experts, DenseExperts):
            found.append(w.float().numpy().astype(np.float64))
            continue
        scale = getattr(experts, f"{name}_scale").numpy()
        if isinstance(experts, IntExperts):
            found.append(w.numpy().astype(np.float64) * scale.astype(np.float64)[:, :, None])
            continue
        codes = w.numpy()
        if experts.elem == "e2m1":
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
            plain = codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
        else:
            plain = codes.view(ml_dtypes.float8_e4m3fn if experts.elem == "e4m3" else ml_dtypes.float8_e5m2)
        factor = np.exp2(scale.astype(np.float64) - 127).repeat(32, axis=2)[:, :, : codes.shape[2]]
        factor[(scale == 255).repeat(32, axis=2)[:, :, : codes.shape[2]]] = np.nan
        found.append(plain.astype(np.float64) * factor)
    return found


LOSSY = {
    "int8": {"a16w16", "a8w8-fp"},
    "int4": {"a16w16", "a8w8-fp"},
    "e4m3": {"a8w8-int"},
    "e2m1": {"a8w8-int"},
}
"""Conversions that round what was rounded before, each with a figure."""


@pytest.mark.parametrize(("kind", "use_case"), [(k, u) for k in KINDS for u in sorted(EXACT[k])])
def test_exact_steps_change_no_value(kind: str, use_case: str) -> None:
    experts = made(kind)
    if use_case == "a16w16" and isinstance(experts, MxExperts):
        # Beyond these scales code times scale leaves bfloat16's normal numbers (facts of the formats: smallest
        # magnitudes 2^-9 and 2^-1, largest 448 and 6; normals from 2^-126 to below 2^128).
        least, most = (10, 246) if kind == "e4m3" else (2, 252)
        clamped = [scale.clamp(least, most) for scale in (experts.w13_scale, experts.w2_scale)]
        experts = replace(experts, w13_scale=clamped[0], w2_scale=clamped[1])
    got = to_kind(experts, UseCase(use_case))
    for before, after in zip(values(experts), values(got), strict=True):
        assert np.array_equal(before, after, equal_nan=True)
        # -0 is a value of its own in every MX format
        there = ~np.isnan(before)
        assert np.array_equal(np.signbit(before)[there], np.signbit(after)[there])


@pytest.mark.parametrize("kind", KINDS)
def test_experts_of_the_use_cases_own_kind_are_passed_on(kind: str) -> None:
    own = {"dense": "a16w16", "int8": "a8w8-int", "int4": "a8w4-int", "e2m1": "a4w4-fp"}.get(kind, "a8w8-fp")
    experts = made(kind)
    assert experts.kind == kind
    assert to_kind(experts, UseCase(own)) is experts


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_step_exists(kind: str) -> None:
    """Quantised experts are rounded again only where a loss is stated (profiles.losses)."""
    possible = set(UseCase) if kind == "dense" else {UseCase(u) for u in EXACT[kind] | LOSSY.get(kind, set())}
    assert set(reachable(kind)) == possible  # type: ignore[arg-type]
    for use_case in set(UseCase) - possible:
        with pytest.raises(ConfigError, match=f"{kind} experts cannot become {use_case}, .*; expected one of") as error:
            to_kind(made(kind), use_case)
        assert all(u.value in str(error.value) for u in possible)
