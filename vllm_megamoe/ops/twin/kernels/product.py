"""Products of a few rows with stored weights, where a kernel is made for their format.

products(x, weights, groups, out)     all groups in one go, on torch's threads
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.given import PER_BYTE
from vllm_megamoe.ops.twin.call import Group, PerExpert, Weights
from vllm_megamoe.ops.twin.kernels.build import Kernel, build, has_permute, registers, why_not
from vllm_megamoe.ops.twin.kernels.decode import PERMUTE
from vllm_megamoe.ops.twin.kernels.nests import (
    BYTE_BLOCK,
    DOT_CHANNELS,
    FRAME,
    GROUP_ROWS,
    MOST_CHANNELS,
    Nest,
    dotted,
    function,
    streamed,
    tiled,
)

logger = logging.getLogger(__name__)

ALL_BITS, TF32_BITS = 0xFFFFFFFF, 0xFFFFE000
"""Bits of a channel scale that are kept."""

_NZ_CHUNK = 8
"""MX groups of a chunk where blocks of K lie far apart."""
_TASKS_PER_THREAD = 4
_SHORTEST_READ = 256
"""Channels that `streamed` reads at a time at least."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a kernel walks through one format of weights; see `nests.FRAME`."""

    kernel: Kernel
    k_step: int
    c_step: int
    block: int
    scale_row: int = 0
    chunk: int = 0
    ahead: int = 0
    halves: int = 0


@cache
def _kernel(kind: str, element: AclDtype, channels: int) -> Kernel:
    nests: dict[str, Nest] = {}
    if kind == "streamed":
        nests[kind] = streamed(registers())
    elif kind == "tiled":
        nests[kind] = tiled(element, registers(), channels)
    else:
        nests[kind] = dotted(element, registers(), PERMUTE if has_permute() else "")
    return build(f"{kind}-{element.name.lower()}-{channels}", function(nests[kind]))


@cache
def ready() -> bool:
    """Whether kernels run here; where they do not, the log says once why."""
    if why_not():
        logger.warning(
            "megamoe twin: no kernels for few rows: %s. torch computes instead, several times slower at few rows.",
            why_not(),
        )
    return not why_not()


def takes(weights: Weights) -> bool:
    """Whether there is a kernel for weights of this format and size; others are multiplied by torch."""
    k, n, element = weights.inputs, weights.outputs, weights.element
    if weights.order == "k_last":
        return k % 32 == 0 and n % DOT_CHANNELS == 0
    stored = weights.stored[0]
    if element is AclDtype.BF16 and stored.dim() == 2:
        return k % 16 == 0 and n % 16 == 0
    in_blocks = stored.dim() == 4 and stored.shape[-1] * stored.element_size() != BYTE_BLOCK
    return element in (AclDtype.BF16, AclDtype.INT8, AclDtype.INT4) and n % 32 == 0 and not in_blocks


def products(x: Tensor, weights: Weights, groups: Sequence[Group], out: Tensor, kept_bits: int = ALL_BITS) -> None:
    """float32 x [R, K] times each group's weight into float32 out [R, N]; integer sums times the channel scale.

    Args:
        x: contiguous; for FP4 the even inputs of each 32 before the odd ones.
        weights: that `takes` takes.
        groups: any number of rows each.
        out: contiguous.
        kept_bits: of a channel scale.
    """
    way = _way(weights, len(groups))
    experts = [expert for expert, _, _ in groups]
    held = addresses(weights.stored, experts)
    scales = addresses(weights.scales, experts) if len(weights.scales) else [0] * len(groups)
    entries: list[int] = []
    for (_, start, stop), weight, scale in zip(groups, held, scales, strict=True):
        for first in range(start, stop, GROUP_ROWS):
            entries += (weight, scale, first, min(GROUP_ROWS, stop - first))
    table = torch.tensor(entries, dtype=torch.int64)
    blocks = -(-weights.outputs // way.block)
    word = {
        "next": 0,
        "tasks": blocks * (len(entries) // 4),
        "blocks": blocks,
        "groups": table.data_ptr(),
        "x": x.data_ptr(),
        "out": out.data_ptr(),
        "inputs": weights.inputs,
        "outputs": weights.outputs,
        "k_step": way.k_step,
        "c_step": way.c_step,
        "block": way.block,
        "scale_row": way.scale_row,
        "chunk": way.chunk,
        "ahead": way.ahead,
        "halves": way.halves,
        "mask": kept_bits,
    }
    frame = torch.tensor([word[name] for name in FRAME], dtype=torch.int64)
    way.kernel(frame.data_ptr())


def addresses(tensors: Sequence[Tensor], experts: Sequence[int]) -> list[int]:
    """Where the tensors of some experts begin in memory."""
    if isinstance(tensors, PerExpert):
        return tensors.addresses(experts)
    return [tensors[expert].data_ptr() for expert in experts]


def _way(weights: Weights, groups: int) -> Way:
    stored, n = weights.stored[0], weights.outputs
    row_bytes = stored.shape[-1] * stored.element_size() if stored.dim() == 2 else 0
    if weights.order == "k_last":
        kernel = _kernel("dotted", weights.element, DOT_CHANNELS)
        scale_row = weights.scales[0].shape[1] * 2
        group_bytes = 32 // PER_BYTE.get(weights.element, 1)
        if row_bytes:
            return Way(kernel, group_bytes, row_bytes, DOT_CHANNELS, scale_row, chunk=weights.inputs // 32)
        c0 = stored.shape[-1]
        block = next(channels for channels in (MOST_CHANNELS, 32, DOT_CHANNELS) if n % channels == 0)
        return Way(
            kernel,
            k_step=stored.shape[1] * 16 * c0,
            c_step=c0,
            block=block,
            scale_row=scale_row,
            chunk=_NZ_CHUNK,
            ahead=block * c0,
            halves=c0 // group_bytes - 1,
        )
    if weights.element is AclDtype.BF16 and row_bytes:
        # A whole row in one read, unless the threads would have too little to do.
        block = max(_SHORTEST_READ, n * groups // (_TASKS_PER_THREAD * torch.get_num_threads()))
        return Way(_kernel("streamed", AclDtype.BF16, 0), row_bytes, 0, min(n, block // 16 * 16))
    channels = 64 if n % 64 == 0 else 32
    kernel = _kernel("tiled", weights.element, channels)
    if row_bytes:
        return Way(kernel, row_bytes, BYTE_BLOCK, channels)
    return Way(kernel, BYTE_BLOCK, stored.shape[1] * 16 * BYTE_BLOCK, channels)
