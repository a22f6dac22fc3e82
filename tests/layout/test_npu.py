"""The device's branch of format_cast against the simulated torch_npu: what is set, asked and rejected."""

import sys
from types import ModuleType

import pytest
import torch

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.cast import npu_format_cast, npu_format_of
from vllm_megamoe.layout.formatted import inner
from vllm_megamoe.profiles.profile import find_profile
from vllm_megamoe.simulator.npu import make_small_torch_npu


@pytest.fixture(params=["a3@9.2", "950@9.2"])
def simulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A torch_npu whose internal formats are off until somebody turns them on."""
    module = make_small_torch_npu(find_profile(request.param))
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


def test_internal_formats_are_allowed_before_the_cast(simulated: ModuleType) -> None:
    assert not simulated.npu.config.allow_internal_format
    assert npu_format_of(npu_format_cast(torch.zeros(16, 32, dtype=torch.int8), AclFormat.FRACTAL_NZ)) == 29


def test_one_expert_of_a_stack_is_cast(simulated: ModuleType) -> None:
    """torch_npu leaves a view in ND (FormatCastKernelNpu.cpp, ShouldFallbackNzToNd); ours is copied first."""
    stack = torch.arange(2 * 16 * 32, dtype=torch.int32).to(torch.int8).view(2, 16, 32)
    cast = npu_format_cast(stack[1], AclFormat.FRACTAL_NZ)
    assert npu_format_of(cast) is AclFormat.FRACTAL_NZ
    assert inner(cast).flatten().equal(stack[1].flatten())  # one fractal: its bytes are in row order


def test_packed_fp4_gets_blocks_of_16_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", make_small_torch_npu(find_profile("950@9.2")))
    codes = torch.arange(16 * 64, dtype=torch.int32).to(torch.uint8).view(16, 64)
    cast = npu_format_cast(codes, AclFormat.FRACTAL_NZ_C0_16)
    assert npu_format_of(cast) is AclFormat.FRACTAL_NZ_C0_16
    assert inner(cast).equal(codes.view(1, 16, 4, 16).permute(2, 0, 1, 3))


def test_a_cast_without_effect_is_an_error(simulated: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "npu_format_cast", lambda tensor, fmt: tensor)
    with pytest.raises(LayoutError, match=r"in ND; expected FRACTAL_NZ.*allow_internal_format"):
        npu_format_cast(torch.zeros(16, 32), AclFormat.FRACTAL_NZ)


@pytest.mark.parametrize("found", [0, 2, 47])
def test_plain_formats_of_any_rank_are_nd(simulated: ModuleType, monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    # A plain 3-D weight is described as NCL (47), 4-D scales as NCHW (0).
    monkeypatch.setattr(simulated, "get_npu_format", lambda tensor: found)
    assert npu_format_of(torch.zeros(2, 3)) is AclFormat.ND


def test_a_foreign_format_is_rejected(simulated: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "get_npu_format", lambda tensor: 3)  # NC1HWC0
    with pytest.raises(LayoutError, match="format 3"):
        npu_format_of(torch.zeros(2, 3))
