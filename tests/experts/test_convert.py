"""Every kind of experts into every use case that it can become: each row and nibble arrives once, at its place."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from experts.index_rules import PLACES, Array, codes_in, flat, make_dense, make_ints, make_mx
from oracle import packing, quantisers
from torch import Tensor

from vllm_megamoe.errors import CheckpointError, ConfigError, LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.convert import convert, transform_weights_for_mega_moe
from vllm_megamoe.experts.operands import LayerOperands
from vllm_megamoe.profiles.use_cases import UseCase

EXPERTS, HIDDEN, WIDTH = 3, 96, 48
PADDED = 160, 96

PAIRS = [
    *(("dense", use_case.value) for use_case in UseCase),
    ("int8", "a8w8-int"),
    ("int4", "a8w8-int"),
    ("int4", "a8w4-int"),
    ("e4m3", "a8w8-fp"),
    ("e5m2", "a8w8-fp"),
    ("e2m1", "a8w8-fp"),
    ("e2m1", "a8w4-fp"),
    ("e2m1", "a4w4-fp"),
]
E4M3_OF_E2M1 = np.array([0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C], dtype=np.uint8)
"""The codes of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 in both formats (OCP MX 1.0, section 5.3)."""


def made(kind: str) -> Experts:
    rng = np.random.default_rng(7)
    if kind == "dense":
        return make_dense(rng, EXPERTS, HIDDEN, WIDTH)
    if kind in ("int8", "int4"):
        return make_ints(rng, int(kind[3:]), EXPERTS, HIDDEN, WIDTH)
    return make_mx(rng, kind, EXPERTS, HIDDEN, WIDTH)


def expected_codes(experts: Experts, name: str, use_case: str) -> tuple[Array, Array | None]:
    """Unsigned codes [E, N, K] and scales [E, N] or [E, N, G] of one weight, without the package's own conversions."""
    w, scale = getattr(experts, name), getattr(experts, f"{name}_scale", None)
    four = PLACES[use_case][0].bits == 4
    if isinstance(experts, DenseExperts):
        if use_case == "a16w16":
            return w.view(torch.int16).numpy().view(np.uint16), None
        full = w.float().numpy()
        if use_case.endswith("int"):
            limit = np.float32(7 if four else 127)
            scales = np.abs(full).max(axis=2) / limit
            codes = np.rint(full / scales[:, :, None]).astype(np.int8).view(np.uint8)
            return codes & (15 if four else 255), scales
        pairs = [quantisers.mx_encode(one, "e2m1" if four else "e4m3") for one in full]
        codes, scales = (np.stack(column) for column in zip(*pairs, strict=True))
        return codes, scales
    assert scale is not None
    if isinstance(experts, IntExperts):
        return w.numpy().view(np.uint8) & (15 if four else 255), scale.numpy()
    codes = w.numpy()
    if experts.elem == "e2m1":
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], -1)
        if use_case == "a8w8-fp":
            codes = E4M3_OF_E2M1[codes & 7] | (codes & 8) << 4
    return codes, scale.numpy()


def filled(codes: Array, scales: Array | None, rows: int, k: int, gate_up: bool) -> tuple[Array, Array | None]:
    """Zeros around the codes, 1 (or byte 127) around the scales; gate and up rows each by themselves."""

    def fill(a: Array, n: int, columns: int, value: float) -> Array:
        parts = np.split(a, 2, axis=1) if gate_up else [a]
        n //= len(parts)
        around = [((0, 0), (0, n - part.shape[1]), (0, columns - part.shape[2])) for part in parts]
        grown = [np.pad(part, w, constant_values=value) for part, w in zip(parts, around, strict=True)]
        return np.concatenate(grown, axis=1)

    if scales is None:
        return fill(codes, rows, k, 0), None
    if scales.ndim == 2:
        return fill(codes, rows, k, 0), fill(scales[:, :, None], rows, 1, 1)[:, :, 0]
    return fill(codes, rows, k, 0), fill(scales, rows, -(-k // 32), 127)


def each(weights: list[Tensor] | Tensor | None) -> list[Tensor]:
    assert weights is not None
    return list(weights) if isinstance(weights, list) else [weights[e] for e in range(len(weights))]


@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])
@pytest.mark.parametrize("padded", [False, True], ids=["own sizes", "padded"])
@pytest.mark.parametrize(("kind", "use_case"), PAIRS)
def test_every_element_and_scale_is_at_its_place(kind: str, use_case: str, padded: bool, stacked: bool) -> None:
    experts = made(kind)
    hidden, width = PADDED if padded else (HIDDEN, WIDTH)
    sizes = {"hidden": hidden, "intermediate_hidden": width} if padded else {}
    operands = convert(experts, UseCase(use_case), stacked=stacked, **sizes)
    assert (operands.hidden, operands.intermediate_hidden) == (hidden, width)
    assert isinstance(operands.l1, Tensor) is stacked
    layers = (
        ("w13", operands.l1, operands.l1_sf, 2 * width, hidden),
        ("w2", operands.l2, operands.l2_sf, hidden, width),
    )
    for place, (name, weights, scales, n, k) in zip(PLACES[use_case], layers, strict=True):
        codes, factors = filled(*expected_codes(experts, name, use_case), n, k, gate_up=name == "w13")
        assert len(each(weights)) == EXPERTS
        for e, weight in enumerate(each(weights)):
            assert np.array_equal(codes_in(flat(weight), place, n, k), codes[e])
        if factors is None:
            assert scales is None
            continue
        for e, found in enumerate(each(scales)):
            if factors.ndim == 2:
                bits = np.float32(factors[e]).view(np.uint32).astype(np.uint64)
                assert np.array_equal(found.view(torch.uint64).numpy(), bits)
            else:
                pairs = packing.pair_scales(factors[e][None])[0]
                assert np.array_equal(found.view(torch.uint8).numpy(), pairs)


@pytest.mark.parametrize("kind", ["dense", "int4"])
def test_the_bias_of_int4_follows_from_its_codes(kind: str) -> None:
    experts = made(kind)
    operands = convert(experts, UseCase.A8W4_INT, hidden=PADDED[0], intermediate_hidden=PADDED[1])
    layers = (("w13", operands.l1_bias, 2 * PADDED[1], PADDED[0]), ("w2", operands.l2_bias, *PADDED))
    for name, biases, n, k in layers:
        codes, scales = filled(*expected_codes(experts, name, "a8w4-int"), n, k, gate_up=name == "w13")
        assert scales is not None
        sums = ((codes.astype(np.int64) ^ 8) - 8).sum(axis=2)
        for e, bias in enumerate(each(biases)):
            # 8 times a whole number is exact, then one product rounds
            assert np.array_equal(bias.numpy(), np.float32(8 * sums[e]) * np.float32(scales[e]))


@pytest.mark.parametrize(("kind", "use_case"), PAIRS)
def test_call_and_buffer_are_told_what_the_documents_demand(kind: str, use_case: str) -> None:
    """Modes and codes of torch_api.txt and csrc: INT8 258, INT4 285, E5M2 291, E4M3 292, E2M1 296."""
    mode = {"a16w16": 0, "a8w8-int": 2, "a8w4-int": 2}.get(use_case, 4)
    out = {"a16w16": None, "a8w8-int": 258, "a8w4-int": 258, "a4w4-fp": 296}.get(
        use_case, 291 if kind == "e5m2" else 292
    )
    weight_type = {"a8w8-int": 258, "a8w4-int": 285, "a8w4-fp": 296, "a4w4-fp": 296}.get(use_case)
    operands = convert(made(kind), UseCase(use_case))
    assert operands.buffer_arguments() == {
        "hidden": HIDDEN,
        "intermediate_hidden": WIDTH,
        "dispatch_quant_mode": mode,
        "dispatch_quant_out_dtype": out,
    }
    arguments = operands.arguments()
    assert (arguments["weight1_type"], arguments["weight2_type"]) == (weight_type, weight_type)
    assert set(operands.shared_arguments()) == {f"shared_{name}" for name in arguments} - {
        "shared_l1_bias",
        "shared_l2_bias",
    }


def same(a: LayerOperands, b: LayerOperands) -> bool:
    for name in ("l1", "l2", "l1_sf", "l2_sf", "l1_bias", "l2_bias"):
        here, there = getattr(a, name), getattr(b, name)
        if (here is None) != (there is None):
            return False
        if here is not None and not all(
            np.array_equal(flat(x), flat(y)) for x, y in zip(each(here), each(there), strict=True)
        ):
            return False
    return a.arguments().keys() == b.arguments().keys() and a.buffer_arguments() == b.buffer_arguments()


@pytest.mark.parametrize(("kind", "use_case"), PAIRS)
def test_experts_may_come_one_after_the_other(kind: str, use_case: str) -> None:
    experts = made(kind)
    stream = (experts.one(e) for e in range(EXPERTS))
    assert same(convert(stream, UseCase(use_case)), convert(experts, UseCase(use_case)))


@pytest.mark.parametrize("use_case", [u.value for u in UseCase])
@pytest.mark.parametrize("listed", [False, True])
def test_plain_weights_of_a_user_stay_as_they_are(use_case: str, listed: bool) -> None:
    experts = made("dense")
    assert isinstance(experts, DenseExperts)
    w13, w2 = experts.w13.clone(), experts.w2.clone()
    given = (list(w13), list(w2)) if listed else (w13, w2)
    operands = transform_weights_for_mega_moe(*given, use_case)
    assert same(operands, convert(experts, UseCase(use_case)))
    assert w13.equal(experts.w13)
    assert w2.equal(experts.w2)
    held = {tensor.untyped_storage().data_ptr() for tensor in (w13, w2)}
    assert use_case != "a16w16" or not held & {m.untyped_storage().data_ptr() for m in operands.l1}


def test_bytes_count_every_tensor_with_its_blocks() -> None:
    """INT4 of [96, 96] and [48, 96]: blocks of 32 bytes are 64 columns, so 96 take the room of 128."""
    operands = convert(made("int4"), UseCase.A8W4_INT)
    assert operands.nbytes == EXPERTS * ((96 * 128 + 48 * 128) // 2 + 96 * (8 + 4) * 2)


def mixed(change: Callable[[], Experts]) -> list[Experts]:
    return [made("int8"), change()]


REJECTED: dict[str, Callable[[], object]] = {
    r"expert 3 is int4 .*, expert 0 is int8": lambda: convert(mixed(lambda: made("int4")), UseCase.A8W8_INT),
    r"expert 1 is e5m2 .*, expert 0 is e4m3": lambda: convert([made("e4m3").one(0), made("e5m2")], UseCase.A8W8_FP),
    r"expert 1 is .* intermediate_hidden 32, expert 0 is": lambda: convert(
        [made("dense").one(0), DenseExperts(torch.zeros(1, 64, 96).bfloat16(), torch.zeros(1, 96, 32).bfloat16())],
        UseCase.A8W8_FP,
    ),
    r"no experts for a16w16; expected at least one": lambda: convert([], UseCase.A16W16),
    r"hidden 96 and intermediate_hidden 48 cannot become 64": lambda: convert(
        made("dense"), UseCase.A8W8_INT, hidden=64
    ),
    r"int8 experts cannot become a8w4-int": lambda: convert(made("int8"), UseCase.A8W4_INT),
    r"use_case='a8w8'; expected one of a16w16, a8w8-int": lambda: transform_weights_for_mega_moe(
        [torch.zeros(4, 2)], [torch.zeros(2, 2)], "a8w8"
    ),
    r"w13 has 2 experts, w2 has 1": lambda: transform_weights_for_mega_moe(
        torch.zeros(2, 4, 2), torch.zeros(1, 2, 2), "a16w16"
    ),
    r"DenseExperts.w13 has dtype float16": lambda: transform_weights_for_mega_moe(
        torch.zeros(1, 4, 2).half(), torch.zeros(1, 2, 2).half(), "a16w16"
    ),
}


@pytest.mark.parametrize("words", REJECTED)
def test_what_cannot_be_converted_is_named(words: str) -> None:
    with pytest.raises((LayoutError, ConfigError, CheckpointError), match=words):
        REJECTED[words]()


def test_mx_experts_keep_their_element_type() -> None:
    experts = made("e5m2")
    assert isinstance(experts, MxExperts)
    assert [m.dtype for m in convert(experts, UseCase.A8W8_FP).l1] == [torch.float8_e5m2] * EXPERTS


@pytest.mark.parametrize("use_case", ["a8w4-fp", "a4w4-fp"])
def test_odd_sizes_in_fp4_are_filled_up_to_a_byte(use_case: str) -> None:
    """The same as experts that had the zeros before."""
    w13, w2 = torch.randn(1, 6, 5).bfloat16(), torch.randn(1, 5, 3).bfloat16()
    operands = transform_weights_for_mega_moe(w13, w2, use_case)
    assert (operands.hidden, operands.intermediate_hidden) == (6, 4)
    gate, up = torch.zeros(1, 4, 6).bfloat16(), torch.zeros(1, 4, 6).bfloat16()
    gate[:, :3, :5], up[:, :3, :5] = w13[:, :3], w13[:, 3:]
    down = torch.zeros(1, 6, 4).bfloat16()
    down[:, :5, :3] = w2
    assert same(operands, transform_weights_for_mega_moe(torch.cat([gate, up], dim=1), down, use_case))
