"""Storage formats as torch_npu casts and reports them, on tensors that carry theirs.

The part of `torch_npu` that the operator's adapter and the layouts ask for; nothing of torch is touched.
"""

from types import ModuleType, SimpleNamespace

from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.layout.cast import format_cast, format_of

_BASE_FORMATS = {4: 0, 5: 30}
"""Plain storage is called NCHW and NCDHW for tensors of 4 and 5 dimensions, else ND (torch_npu)."""


class Formats:
    """The format functions of one torch_npu.

    Args:
        allowed: whether casts to block formats are on from the start. Builds of torch_npu differ in it; where they are
            off, such a cast does nothing, and says nothing.

    Attributes:
        config: `torch_npu.npu.config`.
    """

    def __init__(self, *, allowed: bool) -> None:
        self.config = SimpleNamespace(allow_internal_format=allowed)

    def npu_format_cast(self, input: Tensor, acl_format: int) -> Tensor:
        """The tensor in another format."""
        if int(acl_format) != AclFormat.ND and not self.config.allow_internal_format:
            return input
        return format_cast(input, acl_format)

    def get_npu_format(self, tensor: Tensor) -> int:
        """The format's number."""
        found = format_of(tensor)
        return _BASE_FORMATS.get(tensor.dim(), int(found)) if found == AclFormat.ND else int(found)


def make_small_torch_npu() -> ModuleType:
    """A module that stands in no import path."""
    module = ModuleType("torch_npu", "Simulated by vllm_megamoe.simulator.")
    formats = Formats(allowed=False)
    names = {
        "npu_format_cast": formats.npu_format_cast,
        "get_npu_format": formats.get_npu_format,
        "npu": SimpleNamespace(is_available=lambda: True, config=formats.config),
    }
    for name, value in names.items():
        setattr(module, name, value)
    return module
