"""Checks that the canonical experts share."""

import torch
from torch import Tensor

from vllm_megamoe.errors import CheckpointError


def want_dtype(where: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raise CheckpointError unless the tensor has one of the dtypes."""
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise CheckpointError(f"{where} has dtype {str(tensor.dtype).removeprefix('torch.')}; wanted {wanted}.")


def want_shape(where: str, tensor: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """Raise CheckpointError unless the tensor has the shape, whose letters `meaning` spells."""
    if tuple(tensor.shape) != shape:
        raise CheckpointError(f"{where} has shape {list(tensor.shape)}; wanted {meaning} = {list(shape)}.")


def want_geometry(where: str, w13: Tensor, w2: Tensor) -> tuple[int, int]:
    """E and I of stacked weights [E, 2I, ...] and [E, ...]; both must be 3-D and 2I even."""
    if w13.dim() != 3 or w2.dim() != 3:
        raise CheckpointError(
            f"{where}: w13 has shape {list(w13.shape)}, w2 {list(w2.shape)}; wanted [E, 2I, H] and [E, H, I]."
        )
    experts, rows = w13.shape[:2]
    if rows % 2:
        raise CheckpointError(f"{where}: w13 has {rows} rows; wanted an even number, gate rows first, then up rows.")
    return experts, rows // 2


def want_positive(where: str, scale: Tensor) -> None:
    """Raise CheckpointError naming the first scale that is not a finite number above 0."""
    bad = ~(torch.isfinite(scale) & (scale > 0))
    if bool(bad.any()):
        at = bad.nonzero()[0].tolist()
        raise CheckpointError(f"{where} is {float(scale[tuple(at)])!r} at {at}; wanted finite scales above 0.")
