"""Storage formats as torch_npu casts and reports them, on tensors that carry theirs."""

from types import SimpleNamespace

from torch import Tensor

from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.cast import format_cast, format_of

_BASE_FORMATS = {4: 0, 5: 30}
"""Plain storage is called NCHW and NCDHW for tensors of 4 and 5 dimensions, else ND (torch_npu)."""


class Formats:
    """The format functions of one torch_npu.

    Attributes:
        config: `torch_npu.npu.config`. `allow_internal_format` is off, as builds of torch_npu have it: a cast to a
            block format then does nothing, and says nothing.
    """

    def __init__(self) -> None:
        self.config = SimpleNamespace(allow_internal_format=False)

    def npu_format_cast(self, input: Tensor, acl_format: int) -> Tensor:
        """The tensor in another format."""
        if int(acl_format) != AclFormat.ND and not self.config.allow_internal_format:
            return input
        return format_cast(input, acl_format)

    def get_npu_format(self, tensor: Tensor) -> int:
        """The format's number."""
        found = format_of(tensor)
        return _BASE_FORMATS.get(tensor.dim(), int(found)) if found == AclFormat.ND else int(found)
