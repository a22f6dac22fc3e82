"""INT4 experts whose codes stay packed: they are the experts of a byte for each code, wherever somebody looks."""

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import IntExperts
from vllm_megamoe.experts.operands import to_operands
from vllm_megamoe.experts.packed_int4 import PackedInt4
from vllm_megamoe.experts.steps import to_kind
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.use_cases import UseCase

E, H, I = 2, 96, 64  # noqa: E741


def codes(seed: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed bytes, two rows in each, and the values that ml_dtypes reads in their nibbles."""
    packed = np.random.default_rng(seed).integers(0, 256, (E, rows // 2, columns), dtype=np.uint8)
    values = np.stack([packed & 0x0F, packed >> 4], axis=2).view(ml_dtypes.int4).astype(np.int8)
    return torch.from_numpy(packed).view(torch.int8), torch.from_numpy(values).flatten(1, 2)


def both() -> tuple[PackedInt4, IntExperts]:
    (packed13, w13), (packed2, w2) = codes(0, 2 * I, H), codes(1, H, I)
    g = torch.Generator().manual_seed(2)
    s13, s2 = torch.rand(E, 2 * I, generator=g) + 0.01, torch.rand(E, H, generator=g) + 0.01
    return PackedInt4(packed13, s13, packed2, s2), IntExperts(w13, s13, w2, s2, 4)


def same(one: Any, other: Any) -> None:
    for name in ("w13", "w13_scale", "w2", "w2_scale", "bits", "hidden", "intermediate", "num_experts", "likeness"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.equal(theirs) if isinstance(mine, torch.Tensor) else mine == theirs, name


def test_they_are_the_experts_of_a_byte_for_each_code() -> None:
    packed, plain = both()
    same(packed, plain)
    same(packed.one(1), plain.one(1))


@pytest.mark.parametrize(("hidden", "intermediate"), [(H, I), (128, 64), (96, 128), (97, 64), (128, 65)])
def test_padded(hidden: int, intermediate: int) -> None:
    packed, plain = both()
    same(packed.padded(hidden, intermediate), plain.padded(hidden, intermediate))


@pytest.mark.parametrize("nibbles", ["twos_complement", "offset_binary"])
def test_operands(nibbles: Any) -> None:
    packed, plain = both()
    made = [to_operands(experts, UseCase.A8W4_INT, nibbles) for experts in (packed, plain)]
    for one, other in zip(*made, strict=True):
        for name in ("l1", "l2", "l1_sf", "l2_sf", "l1_bias", "l2_bias"):
            assert inner(getattr(one, name)).equal(inner(getattr(other, name))), name


@pytest.mark.parametrize("use_case", [UseCase.A8W4_INT, UseCase.A8W8_INT, UseCase.A16W16, UseCase.A8W8_FP])
def test_steps_to_other_kinds(use_case: UseCase) -> None:
    found, expected = (to_kind(experts, use_case) for experts in both())
    assert found.w13.equal(expected.w13)
    assert found.w2.equal(expected.w2)


def test_on_a_device() -> None:
    """All of it is there already; where vLLM says a device, tests/contract and a simulated NPU go on from here."""
    packed, plain = both()
    assert packed.on(torch.device("cpu")) is packed
    assert plain.on(torch.device("cpu")) is plain


def test_held_tensors_are_the_packed_ones() -> None:
    packed, _ = both()
    assert [tensor.shape[1:] for tensor in packed.held] == [(I, H), (2 * I,), (H // 2, I), (H,)]
    assert all(a.data_ptr() != b.data_ptr() for a, b in pairwise(packed.held))


WRONG: dict[str, dict[str, torch.Tensor]] = {
    "packed2 has shape": {"packed2": torch.zeros(E, H, I, dtype=torch.int8)},
    "w13_scale has shape": {"w13_scale": torch.ones(E, I)},
    "w2_scale has shape": {"w2_scale": torch.ones(E, I)},
    "packed13 has dtype uint8": {"packed13": torch.zeros(E, I, H, dtype=torch.uint8)},
    "w2_scale is -1.0": {"w2_scale": -torch.ones(E, H)},
    "w13_scale is nan": {"w13_scale": torch.full((E, 2 * I), torch.nan)},
}


@pytest.mark.parametrize(("words", "given"), WRONG.items(), ids=WRONG.keys())
def test_what_does_not_fit_is_named(words: str, given: dict[str, torch.Tensor]) -> None:
    packed, _ = both()
    tensors = dict(zip(("packed13", "w13_scale", "packed2", "w2_scale"), packed.held, strict=True))
    with pytest.raises(CheckpointError, match=words):
        PackedInt4(**(tensors | given))
