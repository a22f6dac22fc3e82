"""Formats on an NPU: torch_npu casts, and is asked afterwards whether it did."""

import importlib
from typing import Any

from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.acl import AclFormat

# Ids of plain storage that torch_npu names after a tensor's rank: NCHW, ND, NCL, NCDHW (contract with torch_npu).
_PLAIN = frozenset({0, 2, 30, 47})


def _torch_npu() -> Any:
    return importlib.import_module("torch_npu")


def npu_format_cast(tensor: Tensor, fmt: AclFormat) -> Tensor:
    """Cast on the device.

    Raises:
        LayoutError: the tensor is in another format afterwards.
    """
    torch_npu = _torch_npu()
    # Builds whose default is off cast to an internal format without doing anything (torch_api.txt sets it as well).
    torch_npu.npu.config.allow_internal_format = True
    cast: Tensor = torch_npu.npu_format_cast(tensor, int(fmt))
    found = npu_format_of(cast)
    if found is not fmt:
        raise LayoutError(
            f"npu_format_cast left a {tensor.dtype} tensor {list(tensor.shape)} in {found.name}; wanted {fmt.name}. "
            "Set torch_npu.npu.config.allow_internal_format = True before the first tensor is made."
        )
    return cast


def npu_format_of(tensor: Tensor) -> AclFormat:
    """The format that torch_npu reports, plain ones as ND.

    Raises:
        LayoutError: a format that this package does not know.
    """
    found = int(_torch_npu().get_npu_format(tensor))
    if found in _PLAIN:
        return AclFormat.ND
    if found not in set(AclFormat):
        raise LayoutError(f"a tensor {list(tensor.shape)} is in format {found}; wanted ND or a FRACTAL_NZ format.")
    return AclFormat(found)
