"""Experts that are laid out where they stay: the second of a layer, and one that comes again, in the same memory."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.experts.canonical import DenseExperts, Experts, IntExperts, MxExperts
from vllm_megamoe.experts.operands import ExpertOperands, from_operands
from vllm_megamoe.experts.slots import Slots
from vllm_megamoe.layout.cast import format_into
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.use_cases import UseCase

SIZES = [(128, 64), (72, 20)]
"""Hidden and intermediate: whole blocks of every format, and blocks that are filled up."""


def expert(use_case: UseCase, hidden: int, width: int, seed: int) -> Experts:
    g = torch.Generator().manual_seed(seed)
    shapes = (1, 2 * width, hidden), (1, hidden, width)

    def numbers(low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, shape, generator=g).to(dtype)

    if use_case is UseCase.A16W16:
        return DenseExperts(*(torch.randn(shape, generator=g).bfloat16() for shape in shapes))
    if use_case in (UseCase.A8W8_INT, UseCase.A8W4_INT):
        bits = 8 if use_case is UseCase.A8W8_INT else 4
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
        scales = [torch.rand(shape[:2], generator=g) + 0.5 for shape in shapes]
        codes = [numbers(low, high, shape, torch.int8) for shape in shapes]
        return IntExperts(codes[0], scales[0], codes[1], scales[1], bits)  # type: ignore[arg-type]
    packed, elem = (1, "e4m3") if use_case is UseCase.A8W8_FP else (2, "e2m1")
    weights = [numbers(0, 0x7F, (*shape[:2], shape[2] // packed), torch.uint8) for shape in shapes]
    powers = [numbers(100, 140, (*shape[:2], -(-shape[2] // 32)), torch.uint8) for shape in shapes]
    return MxExperts(weights[0], powers[0], weights[1], powers[1], elem)  # type: ignore[arg-type]


def memory(slots: Slots) -> list[int]:
    operands = slots.operands()
    held = [getattr(operands, field.name) for field in fields(ExpertOperands)]
    return [inner(tensor).data_ptr() for column in held if column is not None for tensor in column]


def check(slots: Slots, use_case: UseCase, expected: list[Experts]) -> None:
    layer = slots.operands()
    columns = {field.name: getattr(layer, field.name) for field in fields(ExpertOperands)}
    for slot, want in enumerate(expected):
        one = ExpertOperands(**{name: None if c is None else c[slot] for name, c in columns.items()})
        found = from_operands([one], use_case)
        for field in fields(want):
            mine, theirs = getattr(found, field.name), getattr(want, field.name)
            assert mine.equal(theirs) if isinstance(theirs, Tensor) else mine == theirs, (slot, field.name)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("use_case", UseCase)
def test_each_expert_is_in_its_place_and_comes_again_there(
    use_case: UseCase, stacked: bool, sizes: tuple[int, int]
) -> None:
    slots = Slots(use_case, 3, stacked=stacked)
    experts = [expert(use_case, *sizes, seed) for seed in range(3)]
    for slot in (1, 2, 0):
        slots.put(slot, experts[slot])
    check(slots, use_case, experts)
    places = memory(slots)
    experts[0], experts[1] = expert(use_case, *sizes, 7), expert(use_case, *sizes, 8)
    for slot in range(3):
        slots.put(slot, experts[slot])
    check(slots, use_case, experts)
    assert memory(slots) == places


def test_the_bias_of_int4_comes_too() -> None:
    """8 times the sum of a channel's codes, times its scale: sums of whole numbers are exact in float32."""
    slots, (one, two) = Slots(UseCase.A8W4_INT, 2), (expert(UseCase.A8W4_INT, 128, 64, seed) for seed in (1, 2))
    slots.put(0, one)
    slots.put(1, two)
    bias = slots.operands().l1_bias
    assert bias is not None
    assert isinstance(two, IntExperts)
    want = [8.0 * float(sum(row.tolist())) for row in two.w13[0]]
    assert bias[1].equal(torch.tensor(want) * two.w13_scale[0])


def flags_at(address: int) -> list[str]:
    """The kernel's flags of the memory there (proc(5), smaps)."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, stop = (int(end, 16) for end in first.split("-"))
            here = start <= address < stop
        elif here and first == "VmFlags:":
            return rest
    return []


@pytest.mark.parametrize("use_case", [UseCase.A16W16, UseCase.A8W4_INT])
def test_large_operands_ask_for_large_pages(use_case: UseCase) -> None:
    """`hg`; small ones would waste most of a page."""
    slots = Slots(use_case, 4)
    for slot in range(4):
        slots.put(slot, expert(use_case, 1024, 1024, slot))
    large = inner(slots.operands().l1[0])
    assert "hg" in flags_at(large.data_ptr())
    small = Slots(use_case, 1)
    small.put(0, expert(use_case, 128, 64, 0))
    assert "hg" not in flags_at(inner(small.operands().l1[0]).data_ptr())


def test_without_large_pages_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems, and kernels that refuse."""
    one = expert(UseCase.A16W16, 1024, 1024, 0)
    for advice in (None, -1):
        if advice is None:
            monkeypatch.delattr("mmap.MADV_HUGEPAGE")
        else:
            monkeypatch.setattr("mmap.MADV_HUGEPAGE", advice, raising=False)  # EINVAL
        slots = Slots(UseCase.A16W16, 1)
        slots.put(0, one)
        check(slots, UseCase.A16W16, [one])


def test_another_kind_is_rejected_before_anything_is_written() -> None:
    slots = Slots(UseCase.A16W16, 2)
    first = expert(UseCase.A16W16, 128, 64, 1)
    slots.put(0, first)
    other = DenseExperts(first.w13.float(), first.w2.float())
    with pytest.raises(LayoutError, match=r"^expert 1 becomes dense \(float32\) .* before it dense \(bfloat16\)"):
        slots.put(1, other)
    with pytest.raises(LayoutError, match=r"cannot be put into \[4, 4\] of torch.int8"):
        format_into(torch.zeros(4, 4, dtype=torch.int8), torch.zeros(4, 3, dtype=torch.int8))
