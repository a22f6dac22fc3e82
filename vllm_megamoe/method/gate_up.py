"""Gate and up rows of a first matrix: alternating or in halves, and a wide MLP cut into narrow ones."""

import torch
from torch import Tensor


def in_halves(w13: Tensor) -> Tensor:
    """[..., 2I, H] with gate and up rows in turn -> gate rows first, then up rows; copies.

    gpt-oss writes its checkpoint so, and vLLM's loader leaves it so: its activation reads every other channel
    (vLLM 0.32, models/gpt_oss.py and MoEActivation.SWIGLUOAI). Every other model of vLLM's loads gate and up into
    halves already. The operator wants halves.
    """
    return torch.cat([w13[..., 0::2, :], w13[..., 1::2, :]], dim=-2)


def cut_mlp(w13: Tensor, w2: Tensor, pieces: int) -> tuple[Tensor, Tensor]:
    """One MLP [2S, H], [H, S] -> `pieces` experts [P, 2S/P, H], [P, H, S/P] whose outputs add up to its own.

    Gate rows and up rows are cut separately. S must be a multiple of `pieces`.
    """
    hidden, width = w2.shape
    narrow = width // pieces
    gate_up = w13.view(2, pieces, narrow, hidden).transpose(0, 1)
    down = w2.view(hidden, pieces, narrow).transpose(0, 1)
    return gate_up.reshape(pieces, 2 * narrow, hidden), down.contiguous()
