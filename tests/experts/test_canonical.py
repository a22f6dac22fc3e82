"""Canonical experts are checked when they are made: what is wrong is named with what came and what was expected."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.experts.canonical import DenseExperts, IntExperts, MxExperts

E, H, I = 2, 96, 40  # noqa: E741


def dense() -> DenseExperts:
    return DenseExperts(torch.zeros(E, 2 * I, H, dtype=torch.bfloat16), torch.zeros(E, H, I, dtype=torch.bfloat16))


def ints(bits: int = 8) -> IntExperts:
    w13, w2 = (torch.ones(*s, dtype=torch.int8) for s in ((E, 2 * I, H), (E, H, I)))
    return IntExperts(w13, torch.ones(E, 2 * I), w2, torch.ones(E, H), bits)  # type: ignore[arg-type]


def mx(elem: str = "e4m3") -> MxExperts:
    per_byte = 2 if elem == "e2m1" else 1
    shapes = ((E, 2 * I, H // per_byte), (E, 2 * I, 3), (E, H, I // per_byte), (E, H, 2))
    return MxExperts(*(torch.zeros(*s, dtype=torch.uint8) for s in shapes), elem)  # type: ignore[arg-type]


@pytest.mark.parametrize("experts", [dense(), ints(), ints(4), mx(), mx("e5m2"), mx("e2m1")])
def test_sizes(experts: DenseExperts | IntExperts | MxExperts) -> None:
    assert (experts.num_experts, experts.hidden, experts.intermediate) == (E, H, I)


def test_experts_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        dense().w13 = torch.zeros(1)  # type: ignore[misc]


def test_float32_experts_exist() -> None:
    assert DenseExperts(dense().w13.float(), dense().w2.float()).w13.dtype == torch.float32


WRONG = {
    "w13 has shape": lambda: replace(dense(), w13=torch.zeros(2 * I, H)),
    "odd": lambda: replace(dense(), w13=torch.zeros(E, 2 * I + 1, H, dtype=torch.bfloat16)),
    "DenseExperts.w2 has shape": lambda: replace(dense(), w2=torch.zeros(E, I, H, dtype=torch.bfloat16)),
    "DenseExperts.w13 has dtype float16": lambda: replace(dense(), w13=dense().w13.half()),
    "DenseExperts.w2 has dtype float32": lambda: replace(dense(), w2=dense().w2.float()),
    "IntExperts.w13 has dtype uint8": lambda: replace(ints(), w13=ints().w13.to(torch.uint8)),
    "IntExperts.w13_scale has dtype bfloat16": lambda: replace(ints(), w13_scale=ints().w13_scale.bfloat16()),
    "IntExperts.w2_scale has shape": lambda: replace(ints(), w2_scale=torch.ones(E, I)),
    "IntExperts.w2_scale is -1.0": lambda: replace(ints(), w2_scale=-torch.ones(E, H)),
    "IntExperts.w13_scale is 0.0": lambda: replace(ints(), w13_scale=torch.zeros(E, 2 * I)),
    "IntExperts.w13_scale is nan": lambda: replace(ints(), w13_scale=torch.full((E, 2 * I), torch.nan)),
    "IntExperts.bits": lambda: replace(ints(), bits=6),  # type: ignore[arg-type]
    "codes 8..8": lambda: replace(ints(4), w2=ints().w2 * 8),
    "codes -9..-9": lambda: replace(ints(4), w13=ints().w13 * -9),
    "MxExperts.elem": lambda: replace(mx(), elem="e3m2"),  # type: ignore[arg-type]
    "MxExperts.w13_scale has shape": lambda: replace(mx(), w13_scale=torch.zeros(E, 2 * I, 4, dtype=torch.uint8)),
    "MxExperts.w2_scale has shape": lambda: replace(mx(), w2_scale=torch.zeros(E, H, 1, dtype=torch.uint8)),
    "MxExperts.w2 has shape": lambda: replace(mx("e2m1"), w2=mx().w2),
    "MxExperts.w13 has dtype": lambda: replace(mx(), w13=mx().w13.view(torch.float8_e4m3fn)),
}


@pytest.mark.parametrize(("words", "make"), WRONG.items(), ids=WRONG.keys())
def test_what_does_not_fit_is_named(words: str, make: object) -> None:
    with pytest.raises(CheckpointError, match="expected") as error:
        make()  # type: ignore[operator]
    expected = "expected an even number" if words == "odd" else words
    assert expected in str(error.value)


def test_a_bad_scale_is_located() -> None:
    scale = torch.ones(E, 2 * I)
    scale[1, 7] = -2
    with pytest.raises(CheckpointError, match=r"-2.0 at \[1, 7\]"):
        replace(ints(), w13_scale=scale)
