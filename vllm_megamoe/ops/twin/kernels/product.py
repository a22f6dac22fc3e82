"""Products with stored weights, where a kernel is made for their format.

    products(x, weights, groups, out)     all groups in one go, on torch's threads

Groups with few rows and groups with many have kernels of their own: weights are read once, or unpacked once.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.given import PER_BYTE
from vllm_megamoe.ops.twin.call import Group, PerExpert, Weights
from vllm_megamoe.ops.twin.kernels import k_first, k_last
from vllm_megamoe.ops.twin.kernels.build import (
    Kernel,
    build,
    has_dot_product,
    has_pair_product,
    has_permute,
    registers,
    why_not,
)
from vllm_megamoe.ops.twin.kernels.decode import PERMUTE
from vllm_megamoe.ops.twin.kernels.integers import CHANNELS, OFFSETS, ROWS, bytewise
from vllm_megamoe.ops.twin.kernels.task import FRAME, function

logger = logging.getLogger(__name__)
_asking = threading.Lock()

ALL_BITS, TF32_BITS = 0xFFFFFFFF, 0xFFFFE000
"""Bits of a channel scale that are kept."""

_FEW_ROWS = {"k_first": {32: 32, 8: 8}, "k_last": {32: 8, 8: 4}}
"""Rows of a group up to which weights are read anew for each tile of rows, by order and registers."""

_FEW_PAIRS = 12
"""The same for BF16 in pairs, whose unpacked weights are multiplied twice as fast."""

_NZ_CHUNK = 8
"""MX groups of a chunk where blocks of K lie far apart."""

_TASKS_PER_THREAD = 4
_SHORTEST_READ = 256
"""Channels that `streamed` reads at a time at least."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a kernel walks through one format of weights: `rows` of a group at most, and words of `task.FRAME`."""

    kernel: Kernel
    rows: int
    k_step: int
    c_step: int
    block: int
    scale_row: int = 0
    chunk: int = 0
    ahead: int = 0
    halves: int = 0


@cache
def _streamed(pairs: bool) -> Kernel:
    x_bytes = 2 if pairs else 4
    return build(f"streamed-bf16{'-pairs' if pairs else ''}", function(k_first.streamed(registers(), pairs), x_bytes))


@cache
def _tiled(element: AclDtype, channels: int, unpacked: bool, pairs: bool = False) -> Kernel:
    name = f"tiled-{element.name.lower()}-{channels}{'-unpacked' if unpacked else ''}{'-pairs' if pairs else ''}"
    nest = k_first.tiled(element, registers(), channels, unpacked, pairs)
    return build(name, function(nest, 2 if pairs else 4))


@cache
def _bytewise(element: AclDtype) -> Kernel:
    return build(f"bytewise-{element.name.lower()}", function(bytewise(element), x_bytes=1))


@cache
def _dotted(element: AclDtype, unpacked: bool) -> Kernel:
    name = f"dotted-{element.name.lower()}{'-unpacked' if unpacked else ''}"
    return build(name, function(k_last.dotted(element, registers(), PERMUTE if has_permute() else "", unpacked)))


def ready() -> bool:
    """Whether kernels run here; where they do not, the log says once why."""
    # Ranks that are threads ask at the same time.
    with _asking:
        return _ready()


@cache
def _ready() -> bool:
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
        return k % 32 == 0 and n % k_last.DOT_CHANNELS == 0
    stored = weights.stored[0]
    if element is AclDtype.BF16 and stored.dim() == 2:
        return k % 16 == 0 and n % 16 == 0
    in_blocks = stored.dim() == 4 and stored.shape[-1] * stored.element_size() != k_first.BYTE_BLOCK
    return element in (AclDtype.BF16, AclDtype.INT8, AclDtype.INT4) and n % 32 == 0 and not in_blocks


def takes_pairs(weights: Weights) -> bool:
    """Whether x may stay BF16: weights lie in rows of BF16, and the processor multiplies pairs."""
    in_rows = weights.element is AclDtype.BF16 and weights.stored[0].dim() == 2
    return in_rows and weights.outputs % 32 == 0 and has_pair_product()


def products(x: Tensor, weights: Weights, groups: Sequence[Group], out: Tensor, kept_bits: int = ALL_BITS) -> None:
    """x [R, K] times each group's weight into float32 out [R, N]; integer sums times the channel scale.

    Args:
        x: contiguous float32, for FP4 the even inputs of each 32 before the odd ones; int8 for integers; BF16 where
            `takes_pairs` says so.
        weights: that `takes` takes.
        groups: any number of rows each.
        out: contiguous.
        kept_bits: of a channel scale.
    """
    if weights.element in OFFSETS:
        if _bytewise_takes(weights):
            _run(_bytewise_way(weights), x, weights, groups, out, kept_bits)
            return
        x = x.float()
    pairs = x.dtype == torch.bfloat16
    limit = _FEW_PAIRS if pairs else _FEW_ROWS[weights.order][registers()]
    few = [group for group in groups if group[2] - group[1] <= limit]
    many = [group for group in groups if group[2] - group[1] > limit]
    for some, unpacked in ((few, False), (many, True)):
        if some:
            _run(_way(weights, len(some), unpacked, pairs), x, weights, some, out, kept_bits)


def _run(way: Way, x: Tensor, weights: Weights, groups: Sequence[Group], out: Tensor, kept_bits: int) -> None:
    experts = [expert for expert, _, _ in groups]
    held = addresses(weights.stored, experts)
    scales = addresses(weights.scales, experts) if len(weights.scales) else [0] * len(groups)
    entries: list[int] = []
    for (_, start, stop), weight, scale in zip(groups, held, scales, strict=True):
        for first in range(start, stop, way.rows):
            entries += (weight, scale, first, min(way.rows, stop - first))
    table = torch.tensor(entries, dtype=torch.int64)
    offsets = x.sum(dim=1, dtype=torch.int32).mul_(-OFFSETS[weights.element]) if x.dtype == torch.int8 else table
    blocks = -(-weights.outputs // way.block)
    word = {
        "next": 0,
        "tasks": blocks * (len(entries) // 4),
        "blocks": blocks,
        "groups": table.data_ptr(),
        "x": x.data_ptr(),
        "offsets": offsets.data_ptr(),
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


def _bytewise_takes(weights: Weights) -> bool:
    fits = weights.inputs % 4 == 0 and weights.outputs % CHANNELS == 0
    return has_dot_product() and weights.stored[0].dim() == 4 and fits


def _bytewise_way(weights: Weights) -> Way:
    kernel = _bytewise(weights.element)
    return Way(kernel, ROWS, 0, weights.stored[0].shape[1] * 16 * k_first.BYTE_BLOCK, CHANNELS)


def addresses(tensors: Sequence[Tensor], experts: Sequence[int]) -> list[int]:
    """Where the tensors of some experts begin in memory."""
    if isinstance(tensors, PerExpert):
        return tensors.addresses(experts)
    return [tensors[expert].data_ptr() for expert in experts]


def _way(weights: Weights, groups: int, unpacked: bool, pairs: bool) -> Way:
    stored, n, element = weights.stored[0], weights.outputs, weights.element
    row_bytes = stored.shape[-1] * stored.element_size() if stored.dim() == 2 else 0
    if weights.order == "k_last":
        return _k_last_way(weights, stored, row_bytes, unpacked)
    if element is AclDtype.BF16 and row_bytes and (not unpacked or n % 32):
        # A whole row in one read, unless the threads would have too little to do.
        block = max(_SHORTEST_READ, n * groups // (_TASKS_PER_THREAD * torch.get_num_threads()))
        return Way(_streamed(pairs), k_first.ROWS, row_bytes, 0, min(n, block // 32 * 32))
    channels = 64 if n % 64 == 0 else 32
    kernel = _tiled(element, channels, unpacked, pairs)
    rows = k_first.UNPACKED_ROWS if unpacked else k_first.ROWS
    if row_bytes:
        return Way(kernel, rows, row_bytes, k_first.BYTE_BLOCK, channels)
    return Way(kernel, rows, k_first.BYTE_BLOCK, stored.shape[1] * 16 * k_first.BYTE_BLOCK, channels)


def _k_last_way(weights: Weights, stored: Tensor, row_bytes: int, unpacked: bool) -> Way:
    kernel = _dotted(weights.element, unpacked)
    scale_row = weights.scales[0].shape[1] * 2
    group_bytes = 32 // PER_BYTE.get(weights.element, 1)
    block = k_last.DOT_CHANNELS
    if row_bytes:
        chunk = k_last.UNPACKED_CHUNK if unpacked else weights.inputs // 32
        return Way(kernel, k_last.ROWS, group_bytes, row_bytes, block, scale_row, chunk)
    c0 = stored.shape[-1]
    if not unpacked:
        block = next(channels for channels in (k_last.MOST_CHANNELS, 32, block) if weights.outputs % channels == 0)
    return Way(
        kernel,
        k_last.ROWS,
        k_step=stored.shape[1] * 16 * c0,
        c_step=c0,
        block=block,
        scale_row=scale_row,
        chunk=k_last.UNPACKED_CHUNK if unpacked else _NZ_CHUNK,
        ahead=block * c0,
        halves=c0 // group_bytes - 1,
    )
