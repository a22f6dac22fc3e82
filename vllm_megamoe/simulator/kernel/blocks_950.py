"""Storage formats as 950 of 2026-08 takes them for granted (op tiling arch35, groupedMatmulMode).

The dispatch type and the first routed weight choose a kernel; no other weight's format is looked at.
"""

from collections.abc import Sequence

from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype, AclFormat
from vllm_megamoe.layout.cast import format_of
from vllm_megamoe.simulator.arguments import OperatorArguments
from vllm_megamoe.simulator.describe import element_of, type_name
from vllm_megamoe.simulator.kernel.relabel import relabel

_ND, _NZ = AclFormat.ND, AclFormat.FRACTAL_NZ
_PACKED_C0_32 = AclFormat.FRACTAL_NZ_C0_16
"""What blocks of 32 packed elements are called on a tensor of bytes."""


def kernel_formats(a: OperatorArguments) -> tuple[AclFormat, AclFormat]:
    """Formats in which the chosen kernel reads first and second weights, routed and shared."""
    first, out = a.weight1[0], type_name(a.dispatch_quant_out_dtype)
    is_nz = format_of(first) == _NZ
    if element_of(first, a.weight1_type) != AclDtype.FLOAT4_E2M1.name:
        # E5M2 has no kernel for blocks.
        return (_NZ, _NZ) if is_nz and out == AclDtype.FLOAT8_E4M3FN.name else (_ND, _ND)
    if out == AclDtype.FLOAT8_E4M3FN.name:
        return _PACKED_C0_32, _PACKED_C0_32
    return (_NZ if is_nz else _ND), _PACKED_C0_32


def as_kernel_reads(tensors: Sequence[Tensor], fmt: AclFormat) -> list[Tensor]:
    """The same bytes in the kernel's format."""
    return [relabel(tensor, tensor.dtype, fmt, tensor.shape) for tensor in tensors]
