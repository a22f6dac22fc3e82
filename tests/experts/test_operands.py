"""Operands of all six use cases: every byte of an operand is found from the canonical experts by the index formulas."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from experts.index_rules import Place, codes_in, flat, make_dense, make_ints, make_mx
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import ExpertOperands, from_operands, to_operands
from vllm_megamoe.layout.cast import format_cast, format_of
from vllm_megamoe.profiles.use_cases import USE_CASES, UseCase

E, H, I = 3, 160, 48  # noqa: E741  K/32 is odd for H and broken for I; nothing is square
RNG = np.random.default_rng(2)


def ints(bits: int) -> IntExperts:
    return make_ints(RNG, bits, E, H, I)


def mx(elem: str) -> MxExperts:
    return make_mx(RNG, elem, E, H, I)


def dense() -> DenseExperts:
    return make_dense(RNG, E, H, I)


CASES: list[tuple[UseCase, Callable[[], Experts]]] = [
    (UseCase.A16W16, dense),
    (UseCase.A8W8_INT, lambda: ints(8)),
    (UseCase.A8W4_INT, lambda: ints(4)),
    (UseCase.A8W8_FP, lambda: mx("e4m3")),
    (UseCase.A8W8_FP, lambda: mx("e5m2")),
    (UseCase.A8W4_FP, lambda: mx("e2m1")),
    (UseCase.A4W4_FP, lambda: mx("e2m1")),
]
IDS = [f"{use_case}-{i}" for i, (use_case, _) in enumerate(CASES)]


def same(a: Experts, b: Experts) -> bool:
    for name in a.__slots__:
        left, right = getattr(a, name), getattr(b, name)
        if not (left.equal(right) if isinstance(left, Tensor) else left == right):
            return False
    return type(a) is type(b)


@pytest.mark.parametrize(("use_case", "make"), CASES, ids=IDS)
def test_there_and_back(use_case: UseCase, make: Callable[[], Experts]) -> None:
    experts = make()
    operands = to_operands(experts, use_case)
    assert len(operands) == E
    assert same(from_operands(operands, use_case), experts)


@pytest.mark.parametrize(("use_case", "make"), CASES, ids=IDS)
def test_presence_follows_the_scenario_table(use_case: UseCase, make: Callable[[], Experts]) -> None:
    facts = USE_CASES[use_case]
    for o in to_operands(make(), use_case):
        assert [o.l1_sf is not None, o.l2_sf is not None] == [facts.has_scales] * 2
        assert [o.l1_bias is not None, o.l2_bias is not None] == [facts.has_bias] * 2


def test_a16w16_is_the_plain_transpose() -> None:
    experts = dense()
    for e, o in enumerate(to_operands(experts, UseCase.A16W16)):
        assert (format_of(o.l1), format_of(o.l2)) == (2, 2)
        assert (o.l1.shape, o.l2.shape) == ((H, 2 * I), (I, H))
        assert o.l1.is_contiguous()
        assert o.l1.equal(experts.w13[e].t())
        assert o.l2.equal(experts.w2[e].t())


def test_a8w8_int_byte_by_byte() -> None:
    experts = ints(8)
    for e, o in enumerate(to_operands(experts, UseCase.A8W8_INT)):
        for weight, want in ((o.l1, experts.w13[e]), (o.l2, experts.w2[e])):
            channels, k = want.shape
            assert (format_of(weight), weight.shape, weight.dtype) == (29, (k, channels), torch.int8)
            stored = codes_in(flat(weight), Place(8, True, 32), channels, k)
            assert np.array_equal(stored.view(np.int8), want.numpy())


def test_a8w4_int_nibble_by_nibble() -> None:
    experts = ints(4)
    for e, o in enumerate(to_operands(experts, UseCase.A8W4_INT)):
        for weight, want in ((o.l1, experts.w13[e]), (o.l2, experts.w2[e])):
            channels, k = want.shape
            assert (format_of(weight), weight.shape, weight.dtype) == (29, (k, channels // 2), torch.int8)
            # An INT4 matrix [K, N] in FRACTAL_NZ has blocks of 64 columns; nibble p lies in byte p / 2, low first.
            nibbles = codes_in(flat(weight), Place(4, True, 64), channels, k)
            assert np.array_equal((nibbles ^ 8).astype(np.int8) - 8, want.numpy())


def test_int_scales_are_float_bits_per_channel() -> None:
    experts = ints(8)
    for e, o in enumerate(to_operands(experts, UseCase.A8W8_INT)):
        for words, scale in ((o.l1_sf, experts.w13_scale[e]), (o.l2_sf, experts.w2_scale[e])):
            assert words is not None
            assert words.dim() == 1
            assert np.array_equal(words.view(torch.uint64).numpy(), scale.numpy().view(np.uint32).astype(np.uint64))


def test_int4_bias_is_eight_times_the_scaled_channel_sum() -> None:
    experts = ints(4)
    for e, o in enumerate(to_operands(experts, UseCase.A8W4_INT)):
        parts = ((o.l1_bias, experts.w13[e], experts.w13_scale[e]), (o.l2_bias, experts.w2[e], experts.w2_scale[e]))
        for bias, q, scale in parts:
            assert bias is not None
            assert bias.dtype == torch.float32
            # An exact integer times one float32: a single rounding, so equality.
            want = np.float32(
                8 * q.numpy().astype(np.int64).sum(1).astype(np.float64) * scale.numpy().astype(np.float64)
            )
            assert np.array_equal(bias.numpy(), want)


def test_int4_takes_the_documents_packing_as_well() -> None:
    experts = ints(4)
    ours, theirs = (to_operands(experts, UseCase.A8W4_INT, n)[0] for n in ("twos_complement", "offset_binary"))
    plain = [format_cast(weight, 2).view(torch.uint8) for weight in (ours.l1, theirs.l1)]
    assert (plain[0] ^ 0x88).equal(plain[1])
    assert same(
        from_operands(to_operands(experts, UseCase.A8W4_INT, "offset_binary"), UseCase.A8W4_INT, "offset_binary"),
        experts,
    )


def test_int4_comes_back_from_the_other_carrier() -> None:
    experts = ints(4)
    words = [
        ExpertOperands(o.l1.view(torch.int32), o.l2.view(torch.int32), o.l1_sf, o.l2_sf)
        for o in to_operands(experts, UseCase.A8W4_INT)
    ]
    assert words[0].l1.shape == (H, 2 * I // 8)
    assert same(from_operands(words, UseCase.A8W4_INT), experts)


@pytest.mark.parametrize(("elem", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_a8w8_fp_is_the_checkpoints_order(elem: str, dtype: torch.dtype) -> None:
    experts = mx(elem)
    for e, o in enumerate(to_operands(experts, UseCase.A8W8_FP)):
        assert (o.l1.dtype, o.l2.dtype) == (dtype, dtype)
        assert (format_of(o.l1), format_of(o.l2)) == (2, 2)
        assert o.l1.view(torch.uint8).equal(experts.w13[e])
        assert o.l2.view(torch.uint8).equal(experts.w2[e])


@pytest.mark.parametrize(
    ("use_case", "apparent", "nibble_blocks"),
    [(UseCase.A8W4_FP, (50, 50), (32, 32)), (UseCase.A4W4_FP, (29, 50), (64, 32))],
)
def test_fp4_nibble_by_nibble(use_case: UseCase, apparent: tuple[int, int], nibble_blocks: tuple[int, int]) -> None:
    experts = mx("e2m1")
    for e, o in enumerate(to_operands(experts, use_case)):
        assert (format_of(o.l1), format_of(o.l2)) == apparent
        assert (o.l1.dtype, o.l2.dtype) == (torch.uint8, torch.uint8)
        for weight, packed, c0 in zip((o.l1, o.l2), (experts.w13[e], experts.w2[e]), nibble_blocks, strict=True):
            rows, k = packed.shape[0], packed.shape[1] * 2
            want = np.stack([packed.numpy() & 15, packed.numpy() >> 4], -1).reshape(rows, k)
            assert np.array_equal(codes_in(flat(weight), Place(4, False, c0), rows, k), want)


@pytest.mark.parametrize("use_case", [UseCase.A8W8_FP, UseCase.A8W4_FP, UseCase.A4W4_FP])
def test_mx_scales_are_paired(use_case: UseCase) -> None:
    experts = mx("e4m3" if use_case is UseCase.A8W8_FP else "e2m1")
    for e, o in enumerate(to_operands(experts, use_case)):
        for pairs, scale, k in ((o.l1_sf, experts.w13_scale[e], H), (o.l2_sf, experts.w2_scale[e], I)):
            assert pairs is not None
            assert (pairs.dtype, pairs.shape) == (torch.float8_e8m0fnu, (scale.shape[0], -(-k // 64), 2))
            listed = pairs.view(torch.uint8).reshape(scale.shape[0], -1)
            assert listed[:, : scale.shape[1]].equal(scale)
            assert listed[:, scale.shape[1] :].eq(127).all()


@pytest.mark.parametrize(
    ("make", "use_case"),
    [
        (dense, UseCase.A8W8_INT),
        (lambda: ints(8), UseCase.A8W4_INT),
        (lambda: ints(4), UseCase.A8W8_INT),
        (lambda: ints(8), UseCase.A16W16),
        (lambda: mx("e4m3"), UseCase.A8W4_FP),
        (lambda: mx("e2m1"), UseCase.A8W8_FP),
    ],
)
def test_experts_of_another_kind_are_rejected(make: Callable[[], Experts], use_case: UseCase) -> None:
    with pytest.raises(LayoutError, match=f"{use_case} takes"):
        to_operands(make(), use_case)


def test_missing_scales_are_named() -> None:
    o = to_operands(ints(8), UseCase.A8W8_INT)[0]
    with pytest.raises(LayoutError, match="l2_sf is missing"):
        from_operands([ExpertOperands(o.l1, o.l2, o.l1_sf)], UseCase.A8W8_INT)


def test_an_empty_list_is_rejected() -> None:
    with pytest.raises(LayoutError, match="no operands"):
        from_operands([], UseCase.A16W16)
