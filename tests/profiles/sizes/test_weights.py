"""Bytes of experts: equal to what built operands hold, and to published figures."""

from collections.abc import Callable

import pytest
import torch

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import ExpertOperands, to_operands
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.sizes.memory import expert_bytes, weight_bytes
from vllm_megamoe.profiles.use_cases import UseCase

E = 3
# H and I: K/64 odd; blocks of 32 and 16 bytes and of 16 rows broken; FP4 with an odd number of groups
SHAPES = [(160, 48), (1024, 512), (96, 40), (72, 22)]
GIB = 1 << 30


def dense(h: int, i: int) -> Experts:
    return DenseExperts(torch.ones(E, 2 * i, h, dtype=torch.bfloat16), torch.ones(E, h, i, dtype=torch.bfloat16))


def ints(h: int, i: int, bits: int) -> Experts:
    w13, w2 = torch.ones(E, 2 * i, h, dtype=torch.int8), torch.ones(E, h, i, dtype=torch.int8)
    return IntExperts(w13, torch.ones(E, 2 * i), w2, torch.ones(E, h), 4 if bits == 4 else 8)


def mx(h: int, i: int, elem: str) -> Experts:
    per_byte = 2 if elem == "e2m1" else 1
    shapes = ((E, 2 * i, h // per_byte), (E, 2 * i, -(-h // 32)), (E, h, i // per_byte), (E, h, -(-i // 32)))
    return MxExperts(*(torch.ones(s, dtype=torch.uint8) for s in shapes), elem)  # type: ignore[arg-type]


MAKERS: dict[str, Callable[[int, int], Experts]] = {
    "a16w16": dense,
    "a8w8-int": lambda h, i: ints(h, i, 8),
    "a8w4-int": lambda h, i: ints(h, i, 4),
    "a8w8-fp": lambda h, i: mx(h, i, "e4m3"),
    "a8w4-fp": lambda h, i: mx(h, i, "e2m1"),
    "a4w4-fp": lambda h, i: mx(h, i, "e2m1"),
}


def held(operands: list[ExpertOperands], *names: str) -> int:
    tensors = [getattr(o, name) for o in operands for name in names]
    return sum(inner(t).nbytes for t in tensors if t is not None)


@pytest.mark.parametrize(("h", "i"), SHAPES)
@pytest.mark.parametrize("use_case", MAKERS)
def test_equal_to_built_operands(use_case: str, h: int, i: int) -> None:
    operands = to_operands(MAKERS[use_case](h, i), UseCase(use_case))
    parts = expert_bytes(UseCase(use_case), h, i)
    assert E * parts.weights == held(operands, "l1", "l2")
    assert E * parts.scales == held(operands, "l1_sf", "l2_sf")
    assert E * parts.biases == held(operands, "l1_bias", "l2_bias")
    assert weight_bytes(use_case, E, h, i) == E * (parts.weights + parts.scales + parts.biases)


# Qwen3-30B-A3B, 48 layers of 128 experts, hidden 2048, I 768 and padded to 1024: GiB of the matrices
@pytest.mark.parametrize(
    ("use_case", "plain", "padded"), [("a16w16", 54.0, 72.0), ("a8w8-int", 27.0, 36.0), ("a8w4-int", 13.5, 18.0)]
)
def test_price_of_padding(use_case: str, plain: float, padded: float) -> None:
    got = [48 * 128 * expert_bytes(UseCase(use_case), 2048, i).weights / GIB for i in (768, 1024)]
    assert got == [plain, padded]


@pytest.mark.parametrize(("use_case", "plain", "padded"), [("a16w16", 60.0, 120.0), ("a8w8-int", 30.0, 60.0)])
def test_price_of_padding_to_twice_the_width(use_case: str, plain: float, padded: float) -> None:
    """Qwen3.5-35B: 40 layers of 256 experts, I 512."""
    got = [40 * 256 * expert_bytes(UseCase(use_case), 2048, i).weights / GIB for i in (512, 1024)]
    assert got == [plain, padded]


def test_scales_and_biases_of_one_expert() -> None:
    int4, mxfp = expert_bytes(UseCase.A8W4_INT, 7168, 2048), expert_bytes(UseCase.A8W8_FP, 7168, 2048)
    assert (int4.scales, int4.biases) == (8 * (4096 + 7168), 4 * (4096 + 7168))
    assert mxfp.scales == 4096 * 224 + 7168 * 64
    assert expert_bytes(UseCase.A16W16, 7168, 2048).scales == 0


def test_an_unknown_use_case_is_named() -> None:
    with pytest.raises(ConfigError, match="'fp8'; expected one of a16w16"):
        weight_bytes("fp8", 1, 1024, 512)
