"""The tensors of a stored projection: which there are, what they must look like, and what values are legal in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.matrix import Matrix
from vllm_megamoe.errors import CheckpointError

Shape = tuple[int, ...]
Shapes = Callable[[int, int], tuple[Shape, ...]]
"""(N, K) -> the shapes that a tensor may have, the usual one first; none where any shape will do; ANY is any length."""

ANY = -1

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
CODES_FP8 = (torch.float8_e4m3fn,)
E8M0 = (torch.uint8, torch.float8_e8m0fnu)


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a projection.

    Attributes:
        name: what stands behind the projection's name, `weight_scale`.
        dtypes: those that tools write.
        shapes: see Shapes.
        required: whether the projection is incomplete without it.
    """

    name: str
    dtypes: tuple[torch.dtype, ...]
    shapes: Shapes
    required: bool = True


class Stored(Protocol):
    """One way of storing a projection."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its tensors."""

    def read(self, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
        """Checked tensors by part name -> the matrix [rows, columns].

        Raises:
            CheckpointError: values that the format does not allow; the message names the tensor.
        """


def matrix(*more: Shape) -> Shapes:
    """[N, K] itself."""
    return lambda n, k: ((n, k), *more)


def per_row(n: int, k: int) -> tuple[Shape, ...]:
    """A number for each output channel, [N, 1] or [N]."""
    return (n, 1), (n,)


def per_group(group: int) -> Shapes:
    """A number for each channel and `group` inputs, the last group may be short."""
    return lambda n, k: ((n, -(-k // group)),)


def single(n: int, k: int) -> tuple[Shape, ...]:
    """One number."""
    return (1,), (), (1, 1)


def anything(n: int, k: int) -> tuple[Shape, ...]:
    """A shape that says nothing, or that the values check."""
    return ()


def read_projection(stored: Stored, tensors: Mapping[str, Tensor], rows: int, columns: int, where: str) -> Matrix:
    """Check the tensors of one projection and read them.

    Args:
        stored: the format.
        tensors: by part name (`weight`, `weight_scale`, ...), as the files hold them.
        rows, columns: N and K that the model's config asks for.
        where: the projection's full name, for messages.

    Raises:
        CheckpointError: a tensor is missing, left over, of another dtype or shape, or holds illegal values.
    """
    known = {part.name: part for part in stored.parts}
    missing = [part.name for part in stored.parts if part.required and part.name not in tensors]
    left_over = sorted(set(tensors) - set(known))
    if missing or left_over:
        said = [f"{where}.{name} is missing" for name in missing]
        said += [f"{where}.{name} is left over" for name in left_over]
        names = ", ".join(part.name if part.required else f"{part.name} (or not)" for part in stored.parts)
        raise CheckpointError(
            f"{'; '.join(said)}; expected {names}. Copy the checkpoint anew, or correct its description."
        )
    for name, tensor in tensors.items():
        _check(f"{where}.{name}", tensor, known[name], rows, columns)
    return stored.read(tensors, rows, columns, where)


def _check(where: str, tensor: Tensor, part: Part, rows: int, columns: int) -> None:
    if tensor.dtype not in part.dtypes:
        expected = " or ".join(_name(dtype) for dtype in part.dtypes)
        raise CheckpointError(
            f"{where} has dtype {_name(tensor.dtype)}; expected {expected}. Copy the checkpoint anew."
        )
    shapes = part.shapes(rows, columns)
    if not fits(tuple(tensor.shape), shapes):
        expected = shapes_text(shapes)
        raise CheckpointError(
            f"{where} has shape {list(tensor.shape)}; expected {expected} for {rows} outputs and {columns} inputs. Is "
            "config.json that of this checkpoint?"
        )


def fits(shape: Shape, shapes: tuple[Shape, ...]) -> bool:
    """Whether a shape is one of those, see Shapes."""
    alike = (one for one in shapes if len(one) == len(shape))
    return not shapes or any(all(a in (ANY, b) for a, b in zip(one, shape, strict=True)) for one in alike)


def shapes_text(shapes: tuple[Shape, ...]) -> str:
    """`[8, 4] or [8, any]`."""
    return " or ".join(f"[{', '.join('any' if n == ANY else str(n) for n in shape)}]" for shape in shapes)


def positive(scale: Tensor, where: str) -> Tensor:
    """The scale as float32, every one finite and above 0.

    Raises:
        CheckpointError: naming the first that is not.
    """
    found = scale.float()
    bad = ~(torch.isfinite(found) & (found > 0))
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        raise CheckpointError(
            f"{where} is {float(found[tuple(at)])!r} at {at}; expected finite scales above 0. The checkpoint is "
            "damaged: copy it anew, or quantise again."
        )
    return found


def signed(scale: Tensor, where: str) -> Tensor:
    """The scale as float32, every one finite and not 0; AutoRound writes negative ones to use the code -8.

    Raises:
        CheckpointError: naming the first that is not.
    """
    positive(scale.abs(), where)
    return scale.float()


def zeros(tensor: Tensor, where: str, reason: str) -> None:
    """Raise CheckpointError unless every value is 0."""
    if bool((tensor != 0).any()):
        at = (tensor != 0).nonzero()[0].tolist()
        raise CheckpointError(
            f"{where} is {float(tensor[tuple(at)])!r} at {at}; expected 0 everywhere, because {reason}. Quantise "
            "symmetrically."
        )


def no_nan_scale(scale: Tensor, where: str) -> Tensor:
    """E8M0 bytes uint8, none of them 0xFF.

    Raises:
        CheckpointError: naming the first NaN.
    """
    found = scale.view(torch.uint8)
    bad = found == 0xFF
    if bool(bad.any()):
        raise CheckpointError(
            f"{where} is NaN (0xFF) at {bad.nonzero()[0].tolist()}; expected E8M0 bytes up to 254. The checkpoint is "
            "damaged: copy it anew, or quantise again."
        )
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
