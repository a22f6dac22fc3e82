"""Kernels against exact sums of the numbers that the weights mean; the same bits whatever runs them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from ops.compare import run
from ops.operands import Form
from oracle.make import Shape, make_case
from torch import Tensor

from vllm_megamoe.acl import AclDtype, AclFormat
from vllm_megamoe.layout.cast import format_cast
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.ops import settings
from vllm_megamoe.ops.twin.call import Weights
from vllm_megamoe.ops.twin.kernels import build, product
from vllm_megamoe.ops.twin.kernels.product import products, takes

ND, NZ, C0_16 = AclFormat.ND, AclFormat.FRACTAL_NZ, AclFormat.FRACTAL_NZ_C0_16
F64 = NDArray[np.float64]
U = 2.0**-24
"""Unit round-off of float32."""

# K and N: no multiple of 64; two chunks of every kernel; blocks with padding.
SIZES = [(96, 96), (544, 128), (1056, 64)]
FORMATS = [
    (AclDtype.BF16, ND),
    (AclDtype.BF16, NZ),
    (AclDtype.INT8, ND),
    (AclDtype.INT8, NZ),
    (AclDtype.INT4, NZ),
    (AclDtype.FLOAT8_E4M3FN, ND),
    (AclDtype.FLOAT8_E4M3FN, NZ),
    (AclDtype.FLOAT8_E5M2, ND),
    (AclDtype.FLOAT4_E2M1, ND),
    (AclDtype.FLOAT4_E2M1, NZ),
    (AclDtype.FLOAT4_E2M1, C0_16),
]
INTEGERS = (AclDtype.INT8, AclDtype.INT4)
SHIFT = {AclDtype.FLOAT8_E4M3FN: 8, AclDtype.FLOAT8_E5M2: 0, AclDtype.FLOAT4_E2M1: 14}
"""Difference of the exponents' biases to float16's: what a kernel leaves to its caller (docs of `gemm.FP16_SHIFT`)."""


@dataclass(frozen=True)
class Made:
    """Experts as a kernel gets them, and the numbers [K, N] of each that they stand for."""

    weights: Weights
    numbers: list[F64]


def codes(element: AclDtype, n: int, k: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], F64]:
    """Bytes of an MX weight [N, bytes], and the numbers of its codes [N, K]."""
    if element is AclDtype.FLOAT4_E2M1:
        every = random.integers(0, 16, (n, k), dtype=np.uint8)
        return every[:, ::2] | (every[:, 1::2] << 4), every.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    dtype = ml_dtypes.float8_e4m3fn if element is AclDtype.FLOAT8_E4M3FN else ml_dtypes.float8_e5m2
    every = random.integers(0, 256, (n, k), dtype=np.uint8)
    every[~np.isfinite(every.view(dtype).astype(np.float64))] = 1
    return every, every.view(dtype).astype(np.float64)


def expert(element: AclDtype, k: int, n: int, random: np.random.Generator) -> tuple[Tensor, Tensor | None, F64]:
    """Bytes in rows, scales, numbers [K, N]."""
    if element is AclDtype.BF16:
        stored = torch.from_numpy(random.standard_normal((k, n))).to(torch.bfloat16)
        return stored, None, stored.double().numpy()
    if element in INTEGERS:
        least, most = (-128, 128) if element is AclDtype.INT8 else (-8, 8)
        numbers = random.integers(least, most, (k, n), dtype=np.int8)
        scale = random.uniform(0.5, 2.0, n).astype(np.float32)
        packed = numbers if element is AclDtype.INT8 else (numbers[:, ::2] & 15) | (numbers[:, 1::2] << 4)
        words = scale.view(np.uint32).astype(np.int64) | (0xABCD << 32)
        return torch.from_numpy(packed.astype(np.int8)), torch.from_numpy(words), numbers.astype(np.float64)
    stored_codes, values = codes(element, n, k, random)
    bytes_ = random.integers(100, 140, (n, -(-k // 64), 2), dtype=np.uint8)
    bytes_[0, 0] = (0, 200)
    scales = np.exp2(bytes_.reshape(n, -1)[:, : k // 32].astype(np.float64) - 127)
    return torch.from_numpy(stored_codes), torch.from_numpy(bytes_), (values * scales.repeat(32, axis=1)).T


def made(element: AclDtype, fmt: AclFormat, k: int, n: int, experts: int = 3, seed: int = 0) -> Made:
    random = np.random.default_rng(seed)
    parts = [expert(element, k, n, random) for _ in range(experts)]
    stored = [inner(format_cast(part[0], fmt)) for part in parts]
    scales = [part[1] for part in parts if part[1] is not None]
    order = "k_first" if element is AclDtype.BF16 or element in INTEGERS else "k_last"
    weights = Weights("l1_weights", element, fmt, order, k, n, stored, scales, (), stored)
    return Made(weights, [part[2] for part in parts])


def inputs(element: AclDtype, rows: int, k: int, seed: int = 1) -> Tensor:
    random = np.random.default_rng(seed)
    if element in INTEGERS:
        least, most = (-127, 128) if element is AclDtype.INT8 else (-8, 8)
        return torch.from_numpy(random.integers(least, most, (rows, k), dtype=np.int8))
    return torch.from_numpy(random.standard_normal((rows, k)).astype(np.float32))


def multiply(x: Tensor, weights: Weights, groups: list[tuple[int, int, int]]) -> Tensor:
    out = torch.full((len(x), weights.outputs), torch.nan)
    if weights.element is AclDtype.FLOAT4_E2M1:
        x = x.view(len(x), -1, 16, 2).transpose(2, 3).flatten(1)
    products(x, weights, groups, out)
    return out


@pytest.fixture(scope="module", autouse=True)
def _kernels_run_here() -> None:
    assert product.ready(), build.why_not()


@pytest.mark.parametrize(("element", "fmt"), FORMATS)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_sums(element: AclDtype, fmt: AclFormat, k: int, n: int) -> None:
    given = made(element, fmt, k, n)
    assert takes(given.weights)
    groups = [(2, 0, 1), (0, 1, 8), (1, 8, 48)]
    x = inputs(element, 48, k)
    got = multiply(x, given.weights, groups).double().numpy() * 2.0 ** SHIFT.get(element, 0)
    for number, start, stop in groups:
        rows, w = x[start:stop].double().numpy(), given.numbers[number]
        exact = rows @ w
        if element in INTEGERS:
            scale = given.weights.scales[number].numpy().view(np.float32)[::2]
            want = np.float32(exact) * scale  # sums below 2^24, or rounded once to float32
            assert np.array_equal(got[start:stop], want.astype(np.float64))
            continue
        # K products, exact but for one that is below float32's normal numbers, and K - 1 sums in any order.
        bound = k * U * (np.abs(rows) @ np.abs(w)) + k * 2.0**-126
        assert (np.abs(got[start:stop] - exact) <= bound).all()


pairs = pytest.mark.skipif(
    bool(build.why_not()) or not build.has_pair_product(), reason="this processor multiplies no pairs of BF16 numbers"
)


@pairs
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_sums_of_pairs(k: int, n: int) -> None:
    given = made(AclDtype.BF16, ND, k, n)
    assert product.takes_pairs(given.weights)
    x = inputs(AclDtype.BF16, 48, k).bfloat16()
    got = multiply(x, given.weights, [(2, 0, 1), (0, 1, 8), (1, 8, 48)]).double().numpy()
    for number, start, stop in [(2, 0, 1), (0, 1, 8), (1, 8, 48)]:
        rows, w = x[start:stop].double().numpy(), given.numbers[number]
        bound = k * U * (np.abs(rows) @ np.abs(w)) + k * 2.0**-126
        assert (np.abs(got[start:stop] - rows @ w) <= bound).all()


@pairs
def test_a_row_of_pairs_has_the_same_bits_with_any_number_of_rows() -> None:
    given = made(AclDtype.BF16, ND, 544, 128)
    x = inputs(AclDtype.BF16, 110, 544).bfloat16()
    alone = torch.cat([multiply(x[row : row + 1], given.weights, [(0, 0, 1)]) for row in (0, 5, 109)])
    assert multiply(x, given.weights, [(0, 0, 110)])[[0, 5, 109]].equal(alone)
    assert multiply(x[:8], given.weights, [(0, 0, 8)])[[0, 5]].equal(alone[:2])


@pytest.mark.parametrize(("element", "fmt"), FORMATS)
def test_a_row_has_the_same_bits_with_any_number_of_rows_and_threads(element: AclDtype, fmt: AclFormat) -> None:
    given = made(element, fmt, 544, 128)
    x = inputs(element, 110, 544)
    alone = torch.cat([multiply(x[row : row + 1], given.weights, [(0, 0, 1)]) for row in (0, 5, 109)])
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        together = multiply(x, given.weights, [(0, 0, 110)])
        torch.set_num_threads(threads)
        assert together[[0, 5, 109]].equal(alone)


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, kernels are those of a processor with few registers and no instruction of its own."""
    cached = (product._streamed, product._tiled, product._dotted, product._bytewise)

    def clear() -> None:
        for one in cached:
            one.cache_clear()

    def begin() -> None:
        clear()
        monkeypatch.setattr(product, "registers", lambda: 8)
        monkeypatch.setattr(product, "has_permute", lambda: False)
        monkeypatch.setattr(product, "has_dot_product", lambda: False)
        monkeypatch.setattr(product, "has_pair_product", lambda: False)

    yield begin
    clear()


@pytest.mark.parametrize(("element", "fmt"), FORMATS)
def test_another_processors_kernels_give_the_same_bits(
    element: AclDtype, fmt: AclFormat, portable: Callable[[], None]
) -> None:
    given = made(element, fmt, 544, 128)
    x, groups = inputs(element, 48, 544), [(2, 0, 1), (0, 1, 8), (1, 8, 48)]
    mine = multiply(x, given.weights, groups)
    portable()
    assert multiply(x, given.weights, groups).equal(mine)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_code_and_a_nan_scale_make_their_channel_nan(code: int) -> None:
    given = made(AclDtype.FLOAT8_E4M3FN, ND, 96, 96)
    given.weights.stored[0][5, 40] = code
    given.weights.scales[0][7, 1, 0] = 0xFF
    for rows in (1, 40):
        got = multiply(inputs(AclDtype.FLOAT8_E4M3FN, rows, 96), given.weights, [(0, 0, rows)])
        assert torch.isnan(got).any(dim=0).nonzero().flatten().tolist() == [5, 7]
        assert torch.isnan(got[:, [5, 7]]).all()


@pytest.mark.parametrize("use_case", ["a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp"])
@pytest.mark.parametrize("form", [Form(), Form(blocks=True, stacked=True)])
def test_the_operator_gives_the_same_bits_without_kernels(use_case: str, form: Form) -> None:
    # Grid data: every float32 sum is exact, so that its order does not matter; integers are exact with any data.
    case = make_case(use_case, Shape(tokens=(40,), hidden=192, intermediate=128), grid=use_case not in ("a8w8-int",))
    mine = run(case, form)[0].y
    with settings(kernels="off"):
        assert run(case, form)[0].y.tobytes() == mine.tobytes()


def test_sizes_that_no_kernel_takes_are_left_to_torch() -> None:
    weights = made(AclDtype.INT8, NZ, 96, 96).weights
    assert not takes(replace(weights, outputs=80))
    assert not takes(replace(made(AclDtype.FLOAT8_E5M2, ND, 96, 96).weights, inputs=80))
    assert not takes(replace(made(AclDtype.BF16, ND, 96, 96).weights, inputs=90))
