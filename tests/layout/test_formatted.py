"""A formatted tensor keeps its bytes in order through what callers do with weights, and rejects the rest."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout import AclFormat, format_cast
from vllm_megamoe.layout.cast import format_of, stack_experts
from vllm_megamoe.layout.formatted import FormattedTensor, inner

NZ, C16, C32 = AclFormat.FRACTAL_NZ, AclFormat.FRACTAL_NZ_C0_16, AclFormat.FRACTAL_NZ_C0_32
DTYPES = [torch.int8, torch.uint8, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]


def matrix(dtype: torch.dtype, *shape: int) -> Tensor:
    size = dtype.itemsize
    count = int(np.prod(shape)) * size
    return (torch.arange(count, dtype=torch.int32) % 251).to(torch.uint8).view(dtype).view(shape)


def raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.fixture
def weight() -> Tensor:
    return matrix(torch.int8, 40, 48)


@pytest.fixture
def formatted(weight: Tensor) -> Tensor:
    return format_cast(weight, NZ)


@pytest.fixture
def stack(weight: Tensor) -> Tensor:
    return format_cast(torch.stack([weight, weight + 1, weight + 2]), NZ)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", [NZ, C16, C32])
@pytest.mark.parametrize("shape", [(40, 48), (33, 70), (3, 17, 64)])
def test_a_cast_there_and_back_changes_no_byte(dtype: torch.dtype, fmt: AclFormat, shape: tuple[int, ...]) -> None:
    plain = matrix(dtype, *shape)
    cast = format_cast(plain, fmt)
    assert format_of(cast) is fmt
    assert (cast.shape, cast.dtype) == (plain.shape, dtype)
    assert not raw(inner(cast)).flatten()[: plain.numel()].equal(raw(plain).flatten()[: plain.numel()])
    assert raw(format_cast(cast, AclFormat.ND)).equal(raw(plain))


@pytest.mark.parametrize(
    ("dtype", "fmt", "block"),
    [
        (torch.bfloat16, NZ, 16),
        (torch.int8, NZ, 32),
        (torch.float8_e4m3fn, NZ, 32),
        (torch.float32, NZ, 8),
        (torch.uint8, C16, 16),
        (torch.int8, C32, 32),
        (torch.bfloat16, C32, 32),
    ],
)
def test_blocks_are_32_bytes_or_the_named_number_of_elements(dtype: torch.dtype, fmt: AclFormat, block: int) -> None:
    assert inner(format_cast(matrix(dtype, 20, 96), fmt)).shape == (96 // block, 2, 16, block)


def test_numbers_are_taken_for_formats(weight: Tensor) -> None:
    assert format_of(format_cast(weight, 29)) is NZ


def test_a_cast_between_formats_goes_through_the_plain_order(weight: Tensor) -> None:
    a, b = format_cast(format_cast(weight, NZ), C16), format_cast(weight, C16)
    assert inner(a).equal(inner(b))


def test_a_cast_to_the_same_format_is_the_same_tensor(weight: Tensor, formatted: Tensor) -> None:
    assert format_cast(formatted, NZ) is formatted
    assert format_cast(weight, AclFormat.ND) is weight


def test_a_cast_does_not_share_memory(weight: Tensor, formatted: Tensor) -> None:
    before = inner(formatted).clone()
    weight.fill_(1)
    assert inner(formatted).equal(before)


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t.detach(),
        lambda t: t.data,
        lambda t: t.clone(),
        lambda t: t.contiguous(),
        lambda t: t.cpu(),
        lambda t: t.to(torch.int8),
        lambda t: t[:],
        lambda t: copy.deepcopy(t),
        lambda t: torch.nn.Parameter(t, requires_grad=False),
        lambda t: torch.nn.Parameter(t, requires_grad=False).data,
        lambda t: t.view(torch.int32).view(torch.int8),
    ],
)
def test_what_leaves_bytes_in_place_keeps_the_format(formatted: Tensor, keep: Callable[[Tensor], Tensor]) -> None:
    kept = keep(formatted)
    assert format_of(kept) is NZ
    assert kept.shape == formatted.shape
    assert inner(kept).equal(inner(formatted))


def test_the_documents_int4_view(formatted: Tensor) -> None:
    # torch_api.txt: npu_format_cast(w, FRACTAL_NZ).view(torch.int32)
    words = formatted.view(torch.int32)
    assert (words.shape, words.dtype, format_of(words)) == ((40, 12), torch.int32, NZ)
    assert inner(words).flatten().view(torch.int8).equal(inner(formatted).flatten())
    assert inner(words).data_ptr() == inner(formatted).data_ptr()


def test_a_parameter_of_a_module(formatted: Tensor, weight: Tensor) -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(formatted, requires_grad=False)
    assert isinstance(module.weight, torch.nn.Parameter)
    assert [name for name, _ in module.named_parameters()] == ["weight"]
    module.weight.data = format_cast(weight + 1, NZ)
    assert format_cast(module.weight, AclFormat.ND).equal(weight + 1)


@pytest.mark.parametrize("value", [torch.zeros(40, 48, dtype=torch.int8), format_cast(torch.zeros(16, 32), NZ)])
def test_data_takes_formatted_tensors_of_its_kind_only(formatted: Tensor, value: Tensor) -> None:
    with pytest.raises(LayoutError, match="of that kind"):
        formatted.data = value


@pytest.mark.parametrize(
    "take", [lambda s: s[1], lambda s: s.select(0, 1), lambda s: s.unbind(0)[1], lambda s: list(s)[1], lambda s: s[-2]]
)
def test_an_expert_of_a_stack(stack: Tensor, weight: Tensor, take: Callable[[Tensor], Tensor]) -> None:
    expert = take(stack)
    assert format_of(expert) is NZ
    assert format_cast(expert, AclFormat.ND).equal(weight + 1)
    assert inner(expert).data_ptr() == inner(stack)[1].data_ptr()


def test_a_range_of_experts(stack: Tensor, weight: Tensor) -> None:
    assert format_cast(stack[1:], AclFormat.ND).equal(torch.stack([weight + 1, weight + 2]))
    assert stack[1:2].shape == (1, 40, 48)


def test_stacking_experts_is_the_inverse_of_unbinding(stack: Tensor) -> None:
    again = stack_experts(stack.unbind(0))
    assert (format_of(again), again.shape) == (NZ, stack.shape)
    assert inner(again).equal(inner(stack))


def test_a_mixed_list_is_not_stacked(formatted: Tensor, weight: Tensor) -> None:
    with pytest.raises(LayoutError, match="2 kinds"):
        stack_experts([formatted, weight])


def test_copy_between_equals(formatted: Tensor, weight: Tensor) -> None:
    target = format_cast(torch.zeros_like(weight), NZ)
    target.copy_(formatted)
    assert inner(target).equal(inner(formatted))


REJECTED: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda t: t + 1,
    "matmul": lambda t: torch.zeros(2, 40, dtype=torch.int8) @ t,
    "transpose": lambda t: t.T,
    "reshape": lambda t: t.view(-1),
    "row": lambda t: t[0],
    "rows": lambda t: t[:8],
    "columns": lambda t: t[:, 4:],
    "conversion": lambda t: t.float(),
    "compare": lambda t: torch.equal(t, t),
    "stack": lambda t: torch.stack([t, t]),
    "plain_copy": lambda t: torch.zeros(40, 48, dtype=torch.int8).copy_(t),
    "copy_of_plain": lambda t: t.clone().copy_(torch.zeros(40, 48, dtype=torch.int8)),
    "other_columns": lambda t: format_cast(matrix(torch.int8, 16, 34), NZ).view(torch.int32),
    "wider_element_in_c0": lambda t: format_cast(matrix(torch.int8, 16, 64), C16).view(torch.int32),
}


@pytest.mark.parametrize("operation", REJECTED.values(), ids=REJECTED.keys())
def test_what_would_read_blocks_as_rows_is_rejected(formatted: Tensor, operation: Callable[[Tensor], object]) -> None:
    with pytest.raises(LayoutError):
        operation(formatted)


def test_a_rejection_names_the_operation_and_the_way_back(formatted: Tensor) -> None:
    with pytest.raises(LayoutError, match=r"add.*FRACTAL_NZ.*format_cast\(tensor, AclFormat.ND\)"):
        formatted + 1


@pytest.mark.parametrize(
    ("tensor", "fmt", "word"),
    [
        (torch.zeros(4), NZ, "matrix"),
        (torch.zeros(2, 2, 2, 2), NZ, "matrix"),
        (torch.zeros(4, 4, dtype=torch.float64), NZ, "1, 2 or 4 bytes"),
        (torch.zeros(4, 4), 3, "unknown"),
    ],
)
def test_casts_that_make_no_sense(tensor: Tensor, fmt: int, word: str) -> None:
    with pytest.raises(LayoutError, match=word):
        format_cast(tensor, fmt)


def test_the_text_shows_shape_and_format(formatted: Tensor) -> None:
    assert str(formatted) == "FormattedTensor([40, 48], torch.int8, FRACTAL_NZ)"
    assert isinstance(formatted, FormattedTensor)
