"""The small torch_npu that the adapter gets: casts, and what is reported of them (torch_api.txt, format examples)."""

import torch

from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.simulator.npu import make_small_torch_npu

NZ, ND = 29, 2


def test_a_cast_does_nothing_until_internal_formats_are_allowed() -> None:
    torch_npu = make_small_torch_npu()
    weight = torch.arange(48 * 64, dtype=torch.int32).to(torch.int8).view(48, 64)
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(weight, NZ)) == ND
    torch_npu.npu.config.allow_internal_format = True
    cast = torch_npu.npu_format_cast(weight, NZ)
    assert torch_npu.get_npu_format(cast) == NZ
    # zN: blocks of 16 rows and 32 bytes, column by column of blocks
    blocks = weight.view(3, 16, 2, 32).permute(2, 0, 1, 3)
    assert inner(cast).equal(blocks)
    assert torch_npu.npu_format_cast(cast, ND).equal(weight)


def test_formats_survive_what_integrations_do() -> None:
    torch_npu = make_small_torch_npu()
    torch_npu.npu.config.allow_internal_format = True
    stack = torch_npu.npu_format_cast(torch.zeros(3, 48, 64, dtype=torch.int8), NZ)
    parts = [part.clone() for part in stack.unbind(0)]
    kept = [
        *parts,
        stack.data,
        parts[0].view(torch.int32),
        torch.nn.Parameter(parts[1], requires_grad=False),
        stack[1:],
    ]
    assert [torch_npu.get_npu_format(tensor) for tensor in kept] == [NZ] * 7


def test_plain_storage_is_named_after_its_rank() -> None:
    torch_npu = make_small_torch_npu()
    shapes = ((4,), (2, 4), (2, 2, 4), (1, 2, 2, 4), (1, 1, 2, 2, 4))
    assert [torch_npu.get_npu_format(torch.zeros(shape)) for shape in shapes] == [2, 2, 2, 0, 30]


def test_there_is_a_device() -> None:
    assert make_small_torch_npu().npu.is_available()
