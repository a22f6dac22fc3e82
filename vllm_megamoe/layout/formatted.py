"""A tensor that carries a storage format and its real byte order, where no device keeps them.

On an NPU a tensor's format is a property of its storage: shape and dtype stay those of the logical matrix. This is the
same for the CPU. The bytes lie in one plain tensor in the device's order, padding included, and only operations that
leave them in place are allowed; every other one raises LayoutError instead of reading blocks as rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.acl import AclFormat
from vllm_megamoe.errors import LayoutError

_aten = torch.ops.aten
_Handler = Callable[..., Any]
_ALLOWED = "detach, clone, copy_ of equals, view(dtype), and indexing or unbind of leading dimensions"


class FormattedTensor(Tensor):
    """A matrix [R, C], or a stack [E, R, C], as `format_cast` makes it.

    To put one into a module, assign a new Parameter of it. Assigning it to `.data` of a plain parameter would leave the
    bytes behind: torch gives no way to notice that.

    Attributes:
        stored: plain tensor [.., ceil(C/C0), ceil(R/16), 16, C0]: the bytes in their real order.
        acl_format: the format.
    """

    # torch's own method code runs without interception; operations reach the dispatcher below.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    stored: Tensor
    acl_format: AclFormat

    @staticmethod
    def __new__(
        cls: "type[FormattedTensor]", stored: Tensor, fmt: AclFormat, shape: Sequence[int]
    ) -> "FormattedTensor":
        made: FormattedTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=stored.dtype, device=stored.device, requires_grad=False
        )
        made.stored = stored
        made.acl_format = fmt
        return made

    def __init__(self, stored: Tensor, fmt: AclFormat, shape: Sequence[int]) -> None:
        del stored, fmt, shape

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        return f"FormattedTensor({list(self.shape)}, {self.dtype}, {AclFormat(self.acl_format).name})"

    @property
    def data(self) -> "FormattedTensor":
        """As of any tensor: the same bytes, detached. Assigning puts another formatted tensor's bytes in place."""
        return _same(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        # torch's own setter would replace shape and dtype and leave `stored` as it was.
        if not isinstance(value, FormattedTensor) or (value.shape, value.dtype) != (self.shape, self.dtype):
            raise LayoutError(
                f"data of {self!r} cannot become {_text(value)}; expected a formatted tensor of that kind."
            )
        self.stored, self.acl_format = value.stored, value.acl_format

    def __tensor_flatten__(self) -> tuple[list[str], tuple[int]]:
        """For fake tensors and torch.compile: the inner tensor's name, and the rest."""
        return ["stored"], (int(self.acl_format),)

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Tensor], rest: tuple[int], outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> "FormattedTensor":
        del outer_stride
        return FormattedTensor(inner["stored"], AclFormat(rest[0]), outer_size)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        handler = _HANDLERS.get(func)
        if handler is None:
            fmt = next((a.acl_format for a in args if isinstance(a, FormattedTensor)), None)
            name = "a formatted tensor" if fmt is None else f"a {AclFormat(fmt).name} tensor"
            raise LayoutError(
                f"{func} on {name}: its bytes are not in row order. Allowed are {_ALLOWED}; "
                "for anything else take format_cast(tensor, AclFormat.ND) first."
            )
        return handler(*args, **(kwargs or {}))


def inner(tensor: Tensor) -> Tensor:
    """The plain tensor that holds the bytes: of a formatted one in its block order, of any other the tensor itself."""
    return tensor.stored if isinstance(tensor, FormattedTensor) else tensor


def _text(tensor: Tensor) -> str:
    """A tensor in an error: its kind, not its numbers."""
    return repr(tensor) if isinstance(tensor, FormattedTensor) else f"a plain {list(tensor.shape)} of {tensor.dtype}"


def _same(tensor: FormattedTensor, **options: Any) -> FormattedTensor:
    del options
    return FormattedTensor(tensor.stored.detach(), tensor.acl_format, tensor.shape)


def _clone(tensor: FormattedTensor, **options: Any) -> FormattedTensor:
    del options  # memory_format says nothing about blocks
    return FormattedTensor(tensor.stored.clone(), tensor.acl_format, tensor.shape)


def _to_copy(tensor: FormattedTensor, *, dtype: torch.dtype | None = None, **options: Any) -> FormattedTensor:
    if dtype not in (None, tensor.dtype):
        raise LayoutError(
            f"conversion of a {AclFormat(tensor.acl_format).name} tensor to {dtype}: take format_cast(.., ND) first."
        )
    device = options.get("device")
    stored = tensor.stored.clone() if device is None else tensor.stored.to(device, copy=True)
    return FormattedTensor(stored, tensor.acl_format, tensor.shape)


def _copy_into(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not (isinstance(target, FormattedTensor) and isinstance(source, FormattedTensor)) or (
        (target.acl_format, target.shape, target.dtype) != (source.acl_format, source.shape, source.dtype)
    ):
        raise LayoutError(
            f"copy_ of {_text(source)} into {_text(target)}: expected one format, shape and dtype on both sides."
        )
    target.stored.copy_(source.stored, non_blocking)
    return target


def _view_dtype(tensor: FormattedTensor, dtype: torch.dtype) -> FormattedTensor:
    *lead, columns = tensor.shape
    before, after = tensor.dtype.itemsize, dtype.itemsize
    # FRACTAL_NZ is defined in bytes and stays what it is; the others would change their name with the element's size.
    if (before != after and tensor.acl_format != AclFormat.FRACTAL_NZ) or columns * before % after:
        raise LayoutError(f"view of {tensor!r} as {dtype}: a block cannot be cut so; take format_cast(.., ND) first.")
    return FormattedTensor(tensor.stored.view(dtype), tensor.acl_format, [*lead, columns * before // after])


def _leading(tensor: FormattedTensor, dim: int, what: str) -> None:
    if dim % tensor.dim() >= tensor.dim() - 2:
        raise LayoutError(
            f"{what} along dimension {dim} of {tensor!r} would cut blocks; take format_cast(.., ND) first."
        )


def _select(tensor: FormattedTensor, dim: int, index: int) -> FormattedTensor:
    _leading(tensor, dim, "an index")
    shape = [size for d, size in enumerate(tensor.shape) if d != dim % tensor.dim()]
    return FormattedTensor(tensor.stored.select(dim % tensor.dim(), index), tensor.acl_format, shape)


def _slice(
    tensor: FormattedTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> FormattedTensor:
    dim %= tensor.dim()
    if dim >= tensor.dim() - 2 and (start or 0) == 0 and (end is None or end >= tensor.shape[dim]) and step == 1:
        return _same(tensor)
    _leading(tensor, dim, "a slice")
    stored = _aten.slice.Tensor(tensor.stored, dim, start, end, step)
    shape = [*tensor.shape[:dim], stored.shape[dim], *tensor.shape[dim + 1 :]]
    return FormattedTensor(stored, tensor.acl_format, shape)


def _unbind(tensor: FormattedTensor, dim: int = 0) -> list[FormattedTensor]:
    return [_select(tensor, dim, index) for index in range(tensor.shape[dim])]


_HANDLERS: dict[Any, _Handler] = {
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: _copy_into,
    _aten.view.dtype: _view_dtype,
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.unbind.int: _unbind,
}
