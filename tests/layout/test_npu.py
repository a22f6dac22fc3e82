"""The device's branch of format_cast against a stand-in of torch_npu: what is set, asked and rejected."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.cast import npu_format_cast, npu_format_of


class StandIn(ModuleType):
    """npu_format_cast does nothing unless the switch is on, as builds with the default off do."""

    def __init__(self, obeys: bool = True) -> None:
        super().__init__("torch_npu")
        self.npu = SimpleNamespace(config=SimpleNamespace(allow_internal_format=False))
        self.obeys = obeys
        self.formats: dict[int, int] = {}

    def npu_format_cast(self, tensor: torch.Tensor, fmt: int) -> torch.Tensor:
        cast = tensor.clone()
        if self.obeys and self.npu.config.allow_internal_format:
            self.formats[id(cast)] = fmt
        return cast

    def get_npu_format(self, tensor: torch.Tensor) -> int:
        return self.formats.get(id(tensor), 2)


@pytest.mark.parametrize("fmt", [AclFormat.FRACTAL_NZ, AclFormat.FRACTAL_NZ_C0_16])
def test_internal_formats_are_allowed_before_the_cast(monkeypatch: pytest.MonkeyPatch, fmt: AclFormat) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", StandIn())
    assert npu_format_of(npu_format_cast(torch.zeros(16, 32), fmt)) is fmt


def test_a_cast_without_effect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", StandIn(obeys=False))
    with pytest.raises(LayoutError, match=r"in ND; expected FRACTAL_NZ.*allow_internal_format"):
        npu_format_cast(torch.zeros(16, 32), AclFormat.FRACTAL_NZ)


@pytest.mark.parametrize("found", [0, 2, 47])
def test_plain_formats_of_any_rank_are_nd(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    # A plain 3-D weight is described as NCL (47), 4-D scales as NCHW (0).
    stand_in = StandIn()
    tensor = torch.zeros(2, 3)
    stand_in.formats[id(tensor)] = found
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    assert npu_format_of(tensor) is AclFormat.ND


def test_a_foreign_format_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    tensor = torch.zeros(2, 3)
    stand_in.formats[id(tensor)] = 3  # NC1HWC0
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    with pytest.raises(LayoutError, match="format 3"):
        npu_format_of(tensor)
