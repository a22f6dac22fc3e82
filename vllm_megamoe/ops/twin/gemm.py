"""Matrix products on stored weights: by kernels that read their bytes, or by the BLAS, block by block of channels.

Stored bytes are read in place, whatever their format; a block of them is unpacked as float32 into a fixed scratch, and
no more than that is ever unpacked. Two 4-bit elements of a byte go into two halves of the block instead of side by
side, which is several times faster; the products know.

All run in float32. For integers every partial sum stays below 2^24, where float32 is exact in any order; other values
are exact in float32, and the device accumulates in float32 too, in an order of its own.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.layout.packing import from_uint64
from vllm_megamoe.numerics.int8 import truncate_scale
from vllm_megamoe.numerics.mx import GROUP, NAN_SCALE, e8m0_value
from vllm_megamoe.numerics.switches import Nibbles, Numerics
from vllm_megamoe.ops.given import PER_BYTE
from vllm_megamoe.ops.twin.call import Group, Weights
from vllm_megamoe.ops.twin.kernels.product import ALL_BITS, TF32_BITS, products, takes_pairs

SCRATCH_ELEMENTS = 1 << 19
"""2 MiB of float32: a block stays in a core's cache between the unpacking and the product."""

Room = Callable[[int, int], Tensor]
"""(rows, columns) -> float32 memory of that shape."""

STEP = 64
"""Blocks are multiples of this many channels: whole NZ blocks and whole bytes in every format."""

FP16_SHIFT = {AclDtype.FLOAT8_E5M2: 0, AclDtype.FLOAT8_E4M3FN: 8, AclDtype.FLOAT4_E2M1: 14}
"""Codes are read as fp16 with the same bits; their values are 2^shift times that: the difference of the biases."""


class _Local(threading.local):
    """Scratch tensors of one thread."""

    def __init__(self) -> None:
        self.held: dict[torch.dtype, Tensor] = {}


_local = _Local()


def block_channels(inputs: int) -> int:
    """Output channels of a block for K = inputs; at least one step, so a K above 8192 gets a larger scratch."""
    return max(STEP, SCRATCH_ELEMENTS // inputs // STEP * STEP)


def scratch(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """This thread's scratch of a dtype as [rows, columns]; its last content is gone."""
    held = _local.held
    if dtype not in held or held[dtype].numel() < rows * columns:
        held[dtype] = torch.empty(max(SCRATCH_ELEMENTS, rows * columns), dtype=dtype)
    return held[dtype][: rows * columns].view(rows, columns)


def pieces(weights: Weights, expert: int, nibbles: Nibbles) -> Iterator[tuple[int, int, Tensor]]:
    """(start, stop, block) over the output channels; a block is gone when the next one is taken.

    Blocks as `columns_of` or `rows_of` give them, or the plain copy of all channels at once where there is one.
    """
    if weights.plain:
        yield 0, weights.outputs, weights.plain[expert]
        return
    step = block_channels(weights.inputs)
    for start in range(0, weights.outputs, step):
        stop = min(start + step, weights.outputs)
        yield start, stop, block_of(weights, expert, start, stop, nibbles, scratch)


def block_of(weights: Weights, expert: int, start: int, stop: int, nibbles: Nibbles, room: Room) -> Tensor:
    """One block in memory of `room`."""
    if weights.order == "k_last":
        return rows_of(weights, expert, start, stop, room)
    return columns_of(weights, expert, start, stop, nibbles, room)


def columns_of(weights: Weights, expert: int, start: int, stop: int, nibbles: Nibbles, room: Room) -> Tensor:
    """Channels [start, stop) of a K-first weight -> float32 [K, >= stop - start].

    INT4: the even channels, then the odd ones, as many of each.

    Args:
        weights: of the call.
        expert: index.
        start, stop: start is a multiple of STEP; NZ blocks are taken whole, so a last block may bring padding.
        nibbles: how INT4 is stored.
        room: gives memory for float32 [rows, columns].
    """
    per_byte = PER_BYTE.get(weights.element, 1)
    stored, k = weights.stored[expert], weights.inputs
    first, last = start // per_byte, -(-stop // per_byte)
    if stored.dim() == 2:
        source = stored[:, first:last]
    else:
        c0 = stored.shape[-1]
        source = stored[first // c0 : -(-last // c0)].flatten(1, 2)[:, :k].transpose(0, 1)
    # source: [K, n], or from NZ [K, blocks, C0], in elements of the carrier
    block = room(k, source.shape[1:].numel() * per_byte)
    if per_byte == 1:
        block.view(source.shape).copy_(source)
        return block
    if nibbles == "offset_binary":
        source = source ^ -0x78  # flips the top bit of both nibbles: value + 8 becomes two's complement
    halves = block.view(k, 2, *source.shape[1:])
    halves[:, 0].copy_((source << 4) >> 4)
    halves[:, 1].copy_(source >> 4)
    return block


def rows_of(weights: Weights, expert: int, start: int, stop: int, room: Room) -> Tensor:
    """Channels [start, stop) of a K-last MX weight, scales applied, times 2^-FP16_SHIFT -> float32 [n, >= K].

    FP4: the even inputs, then the odd ones, as many of each. NZ padding along K stays and is zero.
    """
    stored, n = weights.stored[expert], stop - start
    source = stored[start:stop]
    if stored.dim() == 4:
        source = stored.flatten(1, 2)[:, start:stop].transpose(0, 1)
    # source: bytes [n, K], or from NZ [n, blocks, C0]
    per_byte = PER_BYTE.get(weights.element, 1)
    block = room(n, source.shape[1:].numel() * per_byte)
    halves = block.view(n, per_byte, *source.shape[1:])
    for half, codes in enumerate(_as_fp16(source.view(torch.int8), weights.element)):
        halves[:, half].copy_(codes)
    factors = _factors(weights.scales[expert][start:stop].flatten(1))
    _scale_groups(block.view(n, per_byte, -1), factors, GROUP // per_byte, weights.inputs // per_byte)
    return block


def padded_inputs(weights: Weights) -> int:
    """K as `rows_of` gives it."""
    stored = weights.stored[0]
    columns = stored.shape[1] if stored.dim() == 2 else stored.shape[0] * stored.shape[-1]
    return columns * PER_BYTE.get(weights.element, 1)


def _as_fp16(codes: Tensor, element: AclDtype) -> list[Tensor]:
    """int8 bytes -> fp16 with the codes' sign, exponent and mantissa in their places; FP4: low nibbles, high nibbles.

    Signs travel by sign extension and are cut back to one bit. Subnormals need no care: all these formats count alike.
    """
    wide = scratch(len(codes), codes.shape[1:].numel(), torch.int16).view(codes.shape).copy_(codes)
    if element is AclDtype.FLOAT8_E5M2:
        return [wide.bitwise_left_shift_(8).view(torch.float16)]
    if element is AclDtype.FLOAT4_E2M1:
        low = (wide << 12).bitwise_right_shift_(3).bitwise_and_(-0x7200)
        high = wide.bitwise_left_shift_(5).bitwise_and_(-0x7200)
        return [low.view(torch.float16), high.view(torch.float16)]
    shifted = wide.bitwise_left_shift_(7).bitwise_and_(-0x4080)
    if codes.numel() and int((codes & 0x7F).max()) == 0x7F:
        # E4M3's only NaN; fp16 would read a number.
        shifted[(codes & 0x7F) == 0x7F] = 0x7E00
    return [shifted.view(torch.float16)]


def _factors(scales: Tensor) -> Tensor:
    """uint8 E8M0 -> float32; the byte is float32's exponent field, its two ends apart."""
    if scales.numel() and int(scales.min()) > 0 and int(scales.max()) < NAN_SCALE:
        return (scales.to(torch.int32) << 23).view(torch.float32)
    return e8m0_value(scales)


def _scale_groups(halves: Tensor, factors: Tensor, width: int, inputs: int) -> None:
    """Multiply float32 [n, halves, >= inputs] by factors [n, groups], one for `width` inputs of each half."""
    n, parts = halves.shape[:2]
    whole = inputs // width
    halves[:, :, : whole * width].view(n, parts, whole, width).mul_(factors[:, None, :whole, None])
    if inputs % width:
        halves[:, :, whole * width : inputs].mul_(factors[:, None, whole : whole + 1])


EXACT_K = {AclDtype.INT8: 1 << 10, AclDtype.INT4: 1 << 18}
"""Longest sum that float32 holds exactly in any order: 2^10 * 127 * 128 < 2^24 and 2^18 * 8 * 8 = 2^24."""


PLAIN_ROWS = 32
"""Rows of an expert beyond which a plain copy is preferred to a kernel."""


def _share(weights: Weights, groups: Sequence[Group]) -> tuple[Sequence[Group], Sequence[Group]]:
    """Groups that a kernel takes, and those that are left to the BLAS."""
    if not weights.compiled:
        return (), groups
    if not weights.plain:
        return groups, ()
    few = [group for group in groups if group[2] - group[1] <= PLAIN_ROWS]
    return few, [group for group in groups if group[2] - group[1] > PLAIN_ROWS]


def dense(x: Tensor, weights: Weights, groups: Sequence[Group]) -> Tensor:
    """BF16 or float32 [R, K] x stored BF16 or float32 [K, N] of each group's expert -> float32 [R, N]."""
    out = torch.empty(len(x), weights.outputs, dtype=torch.float32)
    compiled, others = _share(weights, groups)
    if compiled:
        products(x if x.dtype == torch.bfloat16 and takes_pairs(weights) else x.float(), weights, compiled, out)
    x = x.float() if others else x
    for expert, low, high in others:
        for start, stop, block in pieces(weights, expert, "twos_complement"):
            torch.mm(x[low:high], block[:, : stop - start], out=out[low:high, start:stop])
    return out


def integer(digits: Tensor, weights: Weights, groups: Sequence[Group], numerics: Numerics) -> Tensor:
    """int8 [R, K] x stored INT8 or INT4 [K, N] -> exact sums, as float32 times the channel scale."""
    out = torch.empty(len(digits), weights.outputs, dtype=torch.float32)
    compiled, others = _share(weights, groups)
    if compiled:
        products(digits, weights, compiled, out, TF32_BITS if numerics.scale_bits == "tf32" else ALL_BITS)
    numbers = digits.float() if others else digits
    for expert, low, high in others:
        scale = from_uint64(weights.scales[expert])
        if numerics.scale_bits == "tf32":
            scale = truncate_scale(scale)
        for start, stop, block in pieces(weights, expert, numerics.int4_nibbles):
            sums = _exact(numbers[low:high], block, EXACT_K[weights.element])
            if weights.element is AclDtype.INT4:
                # even channels, then odd ones -> side by side
                sums = sums.view(len(sums), 2, -1).transpose(1, 2).flatten(1)
            torch.mul(sums[:, : stop - start].to(torch.float32), scale[start:stop], out=out[low:high, start:stop])
    return out


def _exact(digits: Tensor, block: Tensor, exact_k: int) -> Tensor:
    """float32 where all sums fit, else int32."""
    if block.shape[0] <= exact_k:
        return digits @ block
    total = (digits[:, :exact_k] @ block[:exact_k]).to(torch.int32)
    for low in range(exact_k, block.shape[0], exact_k):
        total += (digits[:, low : low + exact_k] @ block[low : low + exact_k]).to(torch.int32)
    return total


def mx(x: Tensor, weights: Weights, groups: Sequence[Group]) -> Tensor:
    """float32 [R, K] x stored MX codes [N, K] with their scales -> float32 [R, N]."""
    out = torch.empty(len(x), weights.outputs, dtype=torch.float32)
    compiled, others = _share(weights, groups)
    if compiled:
        products(_paired(x, weights), weights, compiled, out)
    arranged = _arrange(x, weights) if others else x
    for expert, low, high in others:
        for start, stop, block in pieces(weights, expert, "twos_complement"):
            torch.mm(arranged[low:high], block.t(), out=out[low:high, start:stop])
    # Blocks are smaller by a power of two, see `rows_of`; a product by one is exact.
    shift = FP16_SHIFT[weights.element]
    return out.mul_(2.0**shift) if shift else out


def _paired(x: Tensor, weights: Weights) -> Tensor:
    """Inputs in the order of a kernel: for FP4 the even ones of each 32 before the odd ones."""
    if weights.element is not AclDtype.FLOAT4_E2M1:
        return x
    return x.view(len(x), -1, GROUP // 2, 2).transpose(2, 3).flatten(1)


def _arrange(x: Tensor, weights: Weights) -> Tensor:
    """Inputs in the order of `rows_of`: for FP4 the even ones before the odd ones, and zeros against padding."""
    parts = 2 if weights.element is AclDtype.FLOAT4_E2M1 else 1
    width = padded_inputs(weights)
    if parts == 1 and width == x.shape[1]:
        return x
    halves = x.view(len(x), -1, parts).transpose(1, 2)
    return torch.nn.functional.pad(halves, (0, width // parts - halves.shape[2])).flatten(1)
