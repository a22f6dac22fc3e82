"""format_cast: put a tensor into a storage format and take it back, by torch_npu or by `FormattedTensor`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.acl import AclFormat, block_columns
from vllm_megamoe.layout.formatted import FormattedTensor, inner
from vllm_megamoe.layout.fractal import from_nz, to_nz

# Layout moves bytes: an integer of the element's size stands for dtypes that torch cannot pad.
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def format_cast(tensor: Tensor, fmt: AclFormat | int) -> Tensor:
    """The same logical tensor [R, C] or [E, R, C] with its bytes in another format.

    Args:
        tensor: of 1, 2 or 4 bytes an element. 4-bit elements come packed, and blocks are counted in bytes then:
            FRACTAL_NZ_C0_16 gives what the operator calls C0_32.
        fmt: an AclFormat or its number. ND gives a plain tensor back.

    Raises:
        LayoutError: an unknown format, dtype or rank; on an NPU also a cast that did not take place.
    """
    target = _known(fmt)
    if tensor.device.type == "npu":
        from vllm_megamoe.layout.npu import npu_format_cast

        return npu_format_cast(tensor, target)
    if format_of(tensor) == target:
        return tensor
    plain = _to_plain(tensor) if isinstance(tensor, FormattedTensor) else tensor
    return plain if target == AclFormat.ND else _to_blocks(plain, target)


def format_of(tensor: Tensor) -> AclFormat:
    """The format that the tensor's bytes are in; of a packed 4-bit tensor the one that its bytes show.

    Raises:
        LayoutError: on an NPU, a format that has no place in this package.
    """
    if isinstance(tensor, FormattedTensor):
        return AclFormat(tensor.acl_format)
    if tensor.device.type == "npu":
        from vllm_megamoe.layout.npu import npu_format_of

        return npu_format_of(tensor)
    return AclFormat.ND


def stack_experts(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices [R, C] of one format, shape and dtype -> [E, R, C] in that format; copies.

    Raises:
        LayoutError: the list is empty or mixed.
    """
    kinds = {(format_of(tensor), tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(kinds) != 1:
        found = "; ".join(f"{fmt.name} {list(shape)} {dtype}" for fmt, shape, dtype in sorted(kinds, key=str))
        raise LayoutError(f"cannot stack experts of {len(kinds)} kinds ({found}); wanted one format, shape and dtype.")
    stacked = torch.stack([inner(tensor) for tensor in tensors])
    first = tensors[0]
    if isinstance(first, FormattedTensor):
        return FormattedTensor(stacked, format_of(first), [len(tensors), *first.shape])
    return stacked


def _known(fmt: AclFormat | int) -> AclFormat:
    if int(fmt) not in set(AclFormat):
        known = ", ".join(f"{f.name}={int(f)}" for f in AclFormat)
        raise LayoutError(f"format {fmt!r} is unknown; wanted one of {known}.")
    return AclFormat(int(fmt))


def _to_blocks(tensor: Tensor, fmt: AclFormat) -> FormattedTensor:
    size = tensor.dtype.itemsize
    if tensor.dim() not in (2, 3) or size not in _CARRIER:
        raise LayoutError(
            f"cannot cast shape {list(tensor.shape)} of {tensor.dtype} to {fmt.name}; "
            "wanted a matrix or a stack of matrices with elements of 1, 2 or 4 bytes."
        )
    carrier = tensor.detach().contiguous().view(_CARRIER[size])
    return FormattedTensor(to_nz(carrier, block_columns(fmt, size)).view(tensor.dtype), fmt, tensor.shape)


def _to_plain(tensor: FormattedTensor) -> Tensor:
    rows, columns = tensor.shape[-2:]
    carrier = inner(tensor).view(_CARRIER[tensor.dtype.itemsize])
    return from_nz(carrier, rows, columns).view(tensor.dtype)
