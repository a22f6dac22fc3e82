"""The part of `torch_npu` that the operator's adapter and the layouts ask for."""

from types import ModuleType, SimpleNamespace

from torch import Tensor

from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.cast import format_cast, format_of

_BASE_FORMATS = {4: 0, 5: 30}
"""Plain storage is called NCHW and NCDHW for tensors of 4 and 5 dimensions, else ND (torch_npu)."""


def make_torch_npu() -> ModuleType:
    """A module with the names that this package uses; on the CPU, with formats as `FormattedTensor` keeps them."""
    module = ModuleType("torch_npu", "Simulated by vllm_megamoe.simulator.")
    # Off, as builds of torch_npu have it: a cast to a block format then does nothing, and says nothing.
    config = SimpleNamespace(allow_internal_format=False)

    def npu_format_cast(input: Tensor, acl_format: int) -> Tensor:
        if acl_format != AclFormat.ND and not config.allow_internal_format:
            return input
        return format_cast(input, acl_format)

    def get_npu_format(tensor: Tensor) -> int:
        found = format_of(tensor)
        return _BASE_FORMATS.get(tensor.dim(), int(found)) if found == AclFormat.ND else int(found)

    for name, value in {
        "npu_format_cast": npu_format_cast,
        "get_npu_format": get_npu_format,
        "npu": SimpleNamespace(is_available=lambda: True, config=config),
    }.items():
        setattr(module, name, value)
    return module
