"""A tensor that carries its storage format: on an NPU the device does so, on the CPU this subclass.

The twin must read the operator's real byte order, so `format_cast` really reorders, and whatever would mistake stored
bytes for logical elements is refused.
"""

from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.errors import LayoutError
from vllm_megamoe.layout.acl import AclFormat
from vllm_megamoe.layout.fractal import from_nz, to_nz

aten = torch.ops.aten

_BLOCK_BYTES = 32
_BLOCK_ELEMENTS = {AclFormat.FRACTAL_NZ_C0_16: 16, AclFormat.FRACTAL_NZ_C0_32: 32}


class FormattedTensor(torch.Tensor):
    """Logical shape and dtype outside, stored blocks inside.

    Attributes:
        stored: plain tensor [..., ceil(C/C0), ceil(R/16), 16, C0] in the storage's real order.
        acl_format: its format.
    """

    stored: Tensor
    acl_format: AclFormat

    @staticmethod
    def __new__(cls, stored: Tensor, shape: tuple[int, ...], acl_format: AclFormat) -> "FormattedTensor":
        made: FormattedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=stored.dtype, device=stored.device, requires_grad=False
        )
        made.stored = stored
        made.acl_format = acl_format
        return made

    def __tensor_flatten__(self) -> tuple[list[str], tuple[tuple[int, ...], int]]:
        return ["stored"], (tuple(self.shape), int(self.acl_format))

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: tuple[tuple[int, ...], int], outer_size: Any, outer_stride: Any
    ) -> "FormattedTensor":
        del outer_size, outer_stride
        return FormattedTensor(inner["stored"], context[0], AclFormat(context[1]))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        shape, dtype = list(self.shape), str(self.dtype).removeprefix("torch.")
        return f"FormattedTensor({self.acl_format.name}, shape={shape}, dtype={dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self = args[0]
        if func in (aten.detach.default, aten.alias.default):
            return FormattedTensor(self.stored.detach(), tuple(self.shape), self.acl_format)
        if func is aten.clone.default:
            return FormattedTensor(self.stored.clone(), tuple(self.shape), self.acl_format)
        if func is aten.view.dtype:
            return _view_dtype(self, args[1])
        if func is aten.select.int and args[1] == 0 and self.dim() == 3:
            return FormattedTensor(self.stored[args[2]], tuple(self.shape[1:]), self.acl_format)
        if func is aten.unbind.int and (len(args) < 2 or args[1] == 0) and self.dim() == 3:
            return tuple(FormattedTensor(one, tuple(self.shape[1:]), self.acl_format) for one in self.stored.unbind(0))
        if func is aten._to_copy.default and not any(kwargs.get(k) is not None for k in ("dtype", "layout")):
            return FormattedTensor(self.stored.to(**_device_of(kwargs)), tuple(self.shape), self.acl_format)
        raise LayoutError(
            f"{func} on a {self.acl_format.name} tensor of shape {list(self.shape)} would read its blocks as plain "
            "elements; call format_cast(tensor, AclFormat.ND) first, or work before the cast."
        )


def _device_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": kwargs["device"]} if kwargs.get("device") is not None else {}


def _view_dtype(self: FormattedTensor, dtype: torch.dtype) -> FormattedTensor:
    """Bytes stay; the last dimension changes with the element size, as in the documents' int4 example."""
    stored = self.stored.view(dtype)
    columns = self.shape[-1] * self.dtype.itemsize // dtype.itemsize
    return FormattedTensor(stored, (*self.shape[:-1], columns), self.acl_format)


def format_of(tensor: Tensor) -> AclFormat:
    """The storage format of a tensor; ND unless it was cast."""
    if isinstance(tensor, FormattedTensor):
        return tensor.acl_format
    if tensor.device.type == "npu":
        import torch_npu

        return AclFormat(torch_npu.get_npu_format(tensor))
    return AclFormat.ND


def inner(tensor: Tensor) -> Tensor:
    """The plain tensor that holds the stored bytes; a plain tensor itself."""
    return tensor.stored if isinstance(tensor, FormattedTensor) else tensor


def block_width(dtype: torch.dtype, acl_format: AclFormat) -> int:
    """C0 in elements of a dtype: a fixed number, or as many as fill 32 bytes."""
    elements = _BLOCK_ELEMENTS.get(acl_format, _BLOCK_BYTES // dtype.itemsize)
    # Two FP4 elements share one element of torch's packed dtype.
    packed = dtype is torch.float4_e2m1fn_x2 and acl_format in _BLOCK_ELEMENTS
    return elements // 2 if packed else elements


def format_cast(tensor: Tensor, acl_format: AclFormat) -> Tensor:
    """Give a matrix [R, C], or a stack [E, R, C], another storage format.

    On an NPU this is `torch_npu.npu_format_cast`, checked afterwards; on the CPU the result is a FormattedTensor in the
    real byte order, or a plain tensor for ND. A byte that holds two 4-bit elements counts as one element: packed FP4
    takes FRACTAL_NZ_C0_16 for the operator's FRACTAL_NZ_C0_32 (operator.md 5.1).

    Raises:
        LayoutError: a tensor that is no matrix, or a cast that the device did not do.
    """
    acl_format = AclFormat(acl_format)
    if tensor.dim() not in (2, 3):
        raise LayoutError(f"format_cast: shape {list(tensor.shape)}; wanted a matrix [R, C] or a stack [E, R, C].")
    if tensor.device.type == "npu":
        return _cast_on_npu(tensor, acl_format)
    if format_of(tensor) == acl_format:
        return tensor
    if isinstance(tensor, FormattedTensor):
        rows, columns = tensor.shape[-2:]
        tensor = from_nz(tensor.stored, rows, columns)
    if acl_format is AclFormat.ND:
        return tensor
    stored = _reorder(tensor, block_width(tensor.dtype, acl_format))
    return FormattedTensor(stored, tuple(tensor.shape), acl_format)


def _reorder(tensor: Tensor, c0: int) -> Tensor:
    """to_nz on dtypes that cannot be padded themselves: their bytes can."""
    if tensor.dtype.itemsize == 1 and tensor.dtype not in (torch.int8, torch.uint8):
        return to_nz(tensor.view(torch.uint8), c0).view(tensor.dtype)
    return to_nz(tensor, c0)


def _cast_on_npu(tensor: Tensor, acl_format: AclFormat) -> Tensor:
    import torch_npu

    # Without this switch some builds ignore a cast to an internal format in silence (operator.md section 13).
    torch_npu.npu.config.allow_internal_format = True
    cast: Tensor = torch_npu.npu_format_cast(tensor.contiguous(), int(acl_format))
    found = torch_npu.get_npu_format(cast)
    if found != acl_format:
        raise LayoutError(
            f"npu_format_cast gave format {found} instead of {acl_format.name} ({int(acl_format)}) for shape "
            f"{list(tensor.shape)}, {tensor.dtype}; check torch_npu's version and its allow_internal_format setting."
        )
    return cast
