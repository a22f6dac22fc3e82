"""A block of output channels out of a stored weight, as float32 in a fixed scratch.

Stored bytes are read in place, whatever their format; no more than the scratch is ever unpacked.
"""

import threading

import torch
from torch import Tensor

from vllm_megamoe.layout.acl import AclDtype
from vllm_megamoe.numerics.mx import GROUP, e8m0_value
from vllm_megamoe.numerics.switches import Nibbles
from vllm_megamoe.ops.twin.weights import Weights

SCRATCH_ELEMENTS = 1 << 19
"""2 MiB of float32: a block stays in a core's cache between the unpacking and the product."""

STEP = 64
"""Blocks are multiples of this many channels: whole NZ blocks and whole bytes in every format."""

_local = threading.local()


def block_channels(inputs: int) -> int:
    """Output channels of a block for K = inputs; at least one step, so a K above 8192 gets a larger scratch."""
    return max(STEP, SCRATCH_ELEMENTS // inputs // STEP * STEP)


def scratch(rows: int, columns: int) -> Tensor:
    """This thread's scratch as a float32 [rows, columns]; its last content is gone."""
    held: Tensor | None = getattr(_local, "scratch", None)
    if held is None or held.numel() < rows * columns:
        held = _local.scratch = torch.empty(max(SCRATCH_ELEMENTS, rows * columns), dtype=torch.float32)
    return held[: rows * columns].view(rows, columns)


def columns_of(weights: Weights, expert: int, start: int, stop: int, nibbles: Nibbles) -> Tensor:
    """Channels [start, stop) of a K-first weight -> float32 [K, stop - start]; start is a multiple of STEP."""
    per_element = 2 if weights.element is AclDtype.INT4 else 1
    stored, k = weights.stored[expert], weights.inputs
    if stored.dim() == 2:
        source = stored[:, start // per_element : -(-stop // per_element)]
    else:
        c0 = stored.shape[-1]
        blocks = stored[start // per_element // c0 : -(-stop // per_element // c0)]
        source = blocks.flatten(1, 2)[:, :k].transpose(0, 1)
    # source: [K, n] or, from NZ, [K, blocks, C0], in elements of the carrier
    block = scratch(k, source.shape[1:].numel() * per_element)
    if weights.element is AclDtype.INT4:
        _unpack_int4(source, block.view(*source.shape, 2), nibbles)
    else:
        block.view(source.shape).copy_(source)
    return block[:, : stop - start]


def _unpack_int4(source: Tensor, target: Tensor, nibbles: Nibbles) -> None:
    """int8 bytes [...] -> values [..., 2], low nibble first."""
    if nibbles == "offset_binary":
        source = source ^ -0x78  # flips the top bit of both nibbles: value + 8 becomes two's complement
    target[..., 0].copy_((source << 4) >> 4)
    target[..., 1].copy_(source >> 4)


def rows_of(weights: Weights, expert: int, start: int, stop: int) -> Tensor:
    """Channels [start, stop) of a K-last MX weight, scales applied -> float32 [stop - start, K]."""
    stored, k, n = weights.stored[expert], weights.inputs, stop - start
    per_byte = 2 if weights.element is AclDtype.FLOAT4_E2M1 else 1
    source = stored[start:stop]
    if stored.dim() == 4:
        source = stored.flatten(1, 2)[:, start:stop].transpose(0, 1)
    # source: bytes [n, K] or, from NZ, [n, blocks, C0]
    block = scratch(n, source.shape[1:].numel() * per_byte)
    if per_byte == 2:
        _unpack_e2m1(source, block.view(*source.shape, 2))
    else:
        dtype = torch.float8_e5m2 if weights.element is AclDtype.FLOAT8_E5M2 else torch.float8_e4m3fn
        block.view(source.shape).copy_(source.view(dtype))
    _apply_scales(block, weights.scales[expert][start:stop], k)
    return block[:, :k]


def _unpack_e2m1(source: Tensor, target: Tensor) -> None:
    """Bytes [...] -> values [..., 2], low nibble first.

    An E2M1 code in the top bits of an fp16 is its value times 2^-14, subnormals included: both formats count alike.
    """
    wide = source.to(torch.int16)
    low = ((wide & 0x7) << 9) | ((wide & 0x8) << 12)
    high = ((wide & 0x70) << 5) | ((wide & 0x80) << 8)
    target[..., 0].copy_(low.view(torch.float16)).mul_(2.0**14)
    target[..., 1].copy_(high.view(torch.float16)).mul_(2.0**14)


def _apply_scales(block: Tensor, pairs: Tensor, k: int) -> None:
    """Multiply float32 [n, >= K] by its E8M0 scales [n, ceil(K/64), 2], group by group."""
    factors = e8m0_value(pairs.flatten(1))
    whole = k // GROUP
    block[:, : whole * GROUP].view(len(block), whole, GROUP).mul_(factors[:, :whole, None])
    if k % GROUP:
        block[:, whole * GROUP : k].mul_(factors[:, whole : whole + 1])
