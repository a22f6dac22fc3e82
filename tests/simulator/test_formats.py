"""The small torch_npu that the adapter gets: casts, and what is reported of them (torch_api.txt, format examples)."""

import pytest
import torch

from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.profile import Profile, find_profile
from vllm_megamoe.simulator.npu import make_small_torch_npu

NZ, ND = 29, 2
A3, A950 = find_profile("a3@9.2"), find_profile("950@9.2")


def test_a_cast_does_nothing_until_internal_formats_are_allowed() -> None:
    torch_npu = make_small_torch_npu(A3)
    weight = torch.arange(48 * 64, dtype=torch.int32).to(torch.int8).view(48, 64)
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(weight, NZ)) == ND
    torch_npu.npu.config.allow_internal_format = True
    cast = torch_npu.npu_format_cast(weight, NZ)
    assert torch_npu.get_npu_format(cast) == NZ
    # zN: blocks of 16 rows and 32 bytes, column by column of blocks
    blocks = weight.view(3, 16, 2, 32).permute(2, 0, 1, 3)
    assert inner(cast).equal(blocks)
    assert torch_npu.npu_format_cast(cast, ND).equal(weight)


def test_fp4_gets_narrow_blocks_by_the_types_of_the_cast() -> None:
    """FormatCastKernelNpu.cpp: the device's C0_32 of FP4 is reported as C0_16; wide blocks of FP4 have no name there.

    The operator's own example casts A4W4's first weight as bytes, every other FP4 weight with both types.
    """
    torch_npu = make_small_torch_npu(A950)
    torch_npu.npu.config.allow_internal_format = True
    codes = torch.arange(32 * 64, dtype=torch.int32).to(torch.uint8).view(32, 64)
    fp4 = torch_npu.float4_e2m1fn_x2
    narrow = torch_npu.npu_format_cast(codes, NZ, customize_dtype=torch.float8_e4m3fn, input_dtype=fp4)
    assert (torch_npu.get_npu_format(narrow), narrow.shape, narrow.dtype) == (50, codes.shape, torch.uint8)
    # blocks of 16 rows and 16 bytes, 32 elements of FP4
    assert inner(narrow).equal(codes.view(2, 16, 4, 16).permute(2, 0, 1, 3))
    assert torch_npu.npu_format_cast(narrow, ND).equal(codes)
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(codes, NZ)) == NZ
    for types in ({"input_dtype": fp4}, {"customize_dtype": torch.bfloat16, "input_dtype": fp4}):
        with pytest.raises(RuntimeError, match="not support"):
            torch_npu.npu_format_cast(codes, NZ, **types)
    assert (
        torch_npu.get_npu_format(torch_npu.npu_format_cast(codes, NZ, customize_dtype=36 + 256, input_dtype=296)) == 50
    )


@pytest.mark.parametrize("fmt", [50, 51])
@pytest.mark.parametrize("profile", [A3, A950], ids=["a3", "950"])
def test_a_block_width_cannot_be_named(profile: Profile, fmt: int) -> None:
    """aclnnNpuFormatCast.md, dstFormat: which FRACTAL_NZ comes of a cast follows from the types alone."""
    torch_npu = make_small_torch_npu(profile)
    torch_npu.npu.config.allow_internal_format = True
    with pytest.raises(RuntimeError, match="expected ND or FRACTAL_NZ"):
        torch_npu.npu_format_cast(torch.zeros(32, 64, dtype=torch.uint8), fmt)


@pytest.mark.parametrize(
    ("dtype", "types", "expected"),
    [
        (torch.float32, {"customize_dtype": torch.bfloat16}, 50),
        (torch.float32, {"customize_dtype": torch.float8_e4m3fn}, 51),
        (torch.float8_e4m3fn, {}, NZ),
        (torch.bfloat16, {}, NZ),
    ],
)
def test_the_rest_of_the_devices_table(dtype: torch.dtype, types: dict[str, torch.dtype], expected: int) -> None:
    """aclnnNpuFormatCast.md, 950; A2 and A3 take none of the FP8 and mixed pairs."""
    tensor = torch.zeros(32, 64).to(dtype)
    for profile in (A950, A3):
        torch_npu = make_small_torch_npu(profile)
        torch_npu.npu.config.allow_internal_format = True
        if profile is A950 or dtype is torch.bfloat16:
            assert torch_npu.get_npu_format(torch_npu.npu_format_cast(tensor, NZ, **types)) == expected
        else:
            with pytest.raises(RuntimeError, match="not support"):
                torch_npu.npu_format_cast(tensor, NZ, **types)


def test_a_part_of_a_storage_stays_plain_on_a3() -> None:
    stack = torch.zeros(3, 48, 64, dtype=torch.int8)
    for profile, expected in ((A3, ND), (A950, NZ)):
        torch_npu = make_small_torch_npu(profile)
        torch_npu.npu.config.allow_internal_format = True
        assert torch_npu.get_npu_format(torch_npu.npu_format_cast(stack[1], NZ)) == expected
        assert torch_npu.get_npu_format(torch_npu.npu_format_cast(stack[1].clone(), NZ)) == NZ


def test_formats_survive_what_integrations_do() -> None:
    torch_npu = make_small_torch_npu(A3)
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
    torch_npu = make_small_torch_npu(A3)
    shapes = ((4,), (2, 4), (2, 2, 4), (1, 2, 2, 4), (1, 1, 2, 2, 4))
    assert [torch_npu.get_npu_format(torch.zeros(shape)) for shape in shapes] == [2, 2, 2, 0, 30]


def test_there_is_a_device() -> None:
    assert make_small_torch_npu(A3).npu.is_available()
