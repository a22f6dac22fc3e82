"""Kernels for weights that lie K first, [K, N]: BF16, INT8 and INT4.

    streamed    BF16 in rows, few rows of x: sums in memory; some rows of K at a time along the whole block, a long read
    tiled       all others: sums in registers, 32 or 64 channels, K after K. For many rows of x, weights are unpacked
                once into memory that stays in the first cache

A sum runs over K in one order, whatever the number of rows, threads or registers: a row's bits do not depend on them.
"""

from collections.abc import Callable
from itertools import chain

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.twin.kernels.code import F32, I32, LANES, Code
from vllm_megamoe.ops.twin.kernels.decode import DECODERS, bf16_pairs
from vllm_megamoe.ops.twin.kernels.task import Nest, Task, multiply_add, row_tiles, rows_from

BYTE_BLOCK = 32
"""Bytes of a row of an NZ block."""

TILES, UNPACKED_TILES = (4, 2, 1), (6, 4, 2, 1)
"""Rows that are computed together."""

ROWS, UNPACKED_ROWS = 32, 96
"""Most rows of a group."""

_STREAM_STEP = 16
"""Rows of K that `streamed` takes at a time."""

_CHUNK, _UNPACKED_CHUNK = 512, 128
"""Inputs that are summed at a time in `tiled`: a tile of weights stays in the first cache, and integers exact."""

_INTEGERS = (AclDtype.INT8, AclDtype.INT4)


def streamed(registers: int, pairs: bool) -> Nest:
    """BF16 [K, N], row by row; K is a multiple of 16, N of 16, with `pairs` of 32.

    Args:
        registers: vectors that the processor holds.
        pairs: whether x is BF16 and the processor multiplies pairs of it.
    """
    decoder = DECODERS[AclDtype.BF16]
    x_bytes = 2 if pairs else 4

    def nest(code: Code, task: Task) -> None:
        left = code.let(f"sub i64 {task.word['outputs']}, {task.channel}")
        width = code.least(task.word["block"], left)
        weight = code.at(task.weight, task.channel, "i16")

        def zero(row: str) -> None:
            out = code.at(task.out, code.times(row, task.out_row))
            code.each(0, width, LANES, lambda n: code.store(F32, "zeroinitializer", code.at(out, n, "float")))

        code.each(0, task.rows, 1, zero)

        def step(k: str) -> None:
            row_tiles(code, task, TILES, lambda row, rows: tile(k, row, rows))

        def tile(first: str, row: str, rows: int) -> None:
            together = min(_STREAM_STEP, registers * (2 if pairs else 1) // 2 // rows)
            xs = rows_from(code, task.x, row, task.x_row, rows)
            outs = rows_from(code, task.out, row, task.out_row, rows)

            def some_k(k: str) -> None:
                each = 2 if pairs else 1
                wide = [
                    [code.splat(code.at(x, code.times(code.add(k, u), x_bytes))) for u in range(0, together, each)]
                    for x in xs
                ]
                starts = rows_from(code, weight, k, task.word["k_step"], together)

                def along(n: str) -> None:
                    places = [[code.at(out, code.add(n, v * LANES), "float") for v in range(each)] for out in outs]
                    sums = [[code.load(F32, place, 4) for place in own] for own in places]
                    for u in range(0, together, each):
                        at = [code.at(start, n, "i16") for start in starts[u : u + each]]
                        values = bf16_pairs(code, *at) if pairs else decoder.read(code, *at)
                        for row_x, own in zip(wide, sums, strict=True):
                            for v, value in enumerate(values):
                                own[v] = multiply_add(code, row_x[u // each], value, own[v], pairs=pairs)
                    for place, new in zip(chain(*places), chain(*sums), strict=True):
                        code.store(F32, new, place)

                code.each(0, width, each * LANES, along)

            code.each(first, code.add(first, _STREAM_STEP), together, some_k)

        code.each(0, task.word["inputs"], _STREAM_STEP, step)

    return nest


def tiled(element: AclDtype, registers: int, channels: int, unpacked: bool, pairs: bool = False) -> Nest:
    """BF16, INT8 or INT4, in blocks or rows; integer sums times the channel scale.

    Args:
        element: of the weights.
        registers: vectors that the processor holds.
        channels: of a task, 32 or 64; N is a multiple of it.
        unpacked: whether to unpack the weights of a task once for all rows.
        pairs: whether x is BF16 and the processor multiplies pairs of it; for BF16 in rows, unpacked.
    """
    decoder = DECODERS[element]
    x_bytes, k_together = (2, 2) if pairs else (4, 1)
    per_load = LANES * decoder.vectors
    integers = element in _INTEGERS
    kept = I32 if integers else F32
    per_unit = 1 if unpacked else decoder.vectors
    length, tiles = (_UNPACKED_CHUNK, UNPACKED_TILES) if unpacked else (_CHUNK, TILES)

    def nest(code: Code, task: Task) -> None:
        sums = code.memory((UNPACKED_ROWS if unpacked else ROWS) * channels)
        scratch = code.memory(length * channels) if unpacked else ""
        first_byte = code.let(f"udiv i64 {code.times(task.channel, decoder.load_bytes)}, {per_load}")
        block = code.times(code.let(f"udiv i64 {first_byte}, {BYTE_BLOCK}"), task.word["c_step"])
        weight = code.at(code.at(task.weight, block), code.let(f"urem i64 {first_byte}, {BYTE_BLOCK}"))
        loads = []
        for at in range(channels // per_load):
            blocks, rest = divmod(at * decoder.load_bytes, BYTE_BLOCK)
            loads.append(code.at(code.at(weight, code.times(task.word["c_step"], blocks)), rest))
        elements = code.times(task.rows, channels)
        code.each(0, elements, LANES, lambda n: code.store(F32, "zeroinitializer", code.at(sums, n, "float"), 64))

        def read(k: str, units: list[int]) -> list[str]:
            offset = code.times(k, task.word["k_step"])
            return [value for unit in units for value in decoder.read(code, code.at(loads[unit], offset))]

        def ahead(k: str, values: list[str]) -> list[str]:
            """Ask for what the next chunk reads while this one is multiplied: rows lie too far apart to be foreseen."""
            offset = code.times(k, task.word["k_step"])
            for unit in range(0, len(loads), max(1, 64 // decoder.load_bytes)):
                code.do(f"call void @llvm.prefetch.p0(ptr {code.at(loads[unit], offset)}, i32 0, i32 3, i32 1)")
            return values

        def chunk(first: str) -> None:
            stop = code.least(code.add(first, length), task.word["inputs"])

            def place(k: str) -> str:
                return code.at(scratch, code.times(code.let(f"sub i64 {k}, {first}"), channels // k_together), "float")

            def paired(k: str) -> list[str]:
                starts = rows_from(code, weight, k, task.word["k_step"], 2)
                both = [[code.at(start, at * 2 * per_load) for start in starts] for at in range(0, len(loads), 2)]
                return [value for one in both for value in bf16_pairs(code, *one)]

            def unpack(k: str) -> None:
                target = place(k)
                for at, value in enumerate(paired(k) if pairs else read(k, list(range(len(loads))))):
                    code.store(F32, value, code.at(target, at * LANES, "float"), 64)

            def values(k: str, units: list[int]) -> list[str]:
                if not unpacked:
                    return read(k, units)
                source = place(k)
                return [code.load(F32, code.at(source, unit * LANES, "float"), 64) for unit in units]

            if unpacked:
                code.each(first, stop, k_together, unpack)
                code.while_room(stop, code.least(code.add(stop, length), task.word["inputs"]), 1, [], ahead)
            row_tiles(code, task, tiles, lambda row, rows: tile(first, stop, row, rows, values))

        def tile(first: str, stop: str, row: str, rows: int, values: Callable[[str, list[int]], list[str]]) -> None:
            xs = rows_from(code, task.x, row, task.x_row, rows)
            held = rows_from(code, sums, row, str(4 * channels), rows)
            most = max(1, registers * 3 // 4 // rows // per_unit)
            together = 1 << (most.bit_length() - 1)
            every = list(range(channels // LANES // per_unit))
            for start in range(0, len(every), together):
                some = every[start : start + together]
                count = len(some) * per_unit
                places = [code.at(one, (start * per_unit + v) * LANES, "float") for one in held for v in range(count)]
                carried = [(F32, "zeroinitializer" if integers else code.load(F32, p, 64)) for p in places]

                def turn(k: str, old: list[str], some: list[int] = some, count: int = count) -> list[str]:
                    found = values(k, some)
                    wide = [code.splat(code.at(x, code.times(k, x_bytes))) for x in xs]
                    return [
                        multiply_add(code, wide[i // count], found[i % count], one, pairs=pairs)
                        for i, one in enumerate(old)
                    ]

                for place, new in zip(places, code.loop(first, stop, k_together, carried, turn), strict=True):
                    if integers:
                        # Exact: up to 512 products of magnitude 2^14 at most.
                        more = code.let(f"fptosi {F32} {new} to {I32}")
                        new = code.let(f"add {I32} {code.load(I32, place, 64)}, {more}")
                    code.store(kept, new, place, 64)

        code.each(0, task.word["inputs"], length, chunk)
        code.each(0, task.rows, 1, lambda row: finish(code, task, sums, row, element, channels))

    return nest


def finish(code: Code, task: Task, sums: str, row: str, element: AclDtype, channels: int) -> None:
    """Write out a row of sums [rows, channels]: int32 times the channel scale, or float32 as it is."""
    vectors, integers = DECODERS[element].vectors, element in _INTEGERS
    kept = I32 if integers else F32
    out = code.at(task.out, code.times(row, task.out_row))
    held = code.at(sums, code.times(row, channels), "float")
    for at in range(0, channels, LANES * vectors):
        values = [code.load(kept, code.at(held, at + v * LANES, "float"), 64) for v in range(vectors)]
        if integers:
            values = [code.let(f"sitofp {I32} {value} to {F32}") for value in values]
        for v, value in enumerate(_side_by_side(code, values)):
            n = at + v * LANES
            if integers:
                value = code.let(f"fmul {F32} {value}, {_channel_scale(code, task, n)}")
            code.store(F32, value, code.at(out, n, "float"))


def _side_by_side(code: Code, values: list[str]) -> list[str]:
    """Even channels and odd ones -> 32 in order; one vector stays as it is."""
    if len(values) == 1:
        return values
    orders = [[half * LANES // 2 + i // 2 + LANES * (i % 2) for i in range(LANES)] for half in range(2)]
    low, high = values
    return [code.shuffle(F32, low, order, high) for order in orders]


def _channel_scale(code: Code, task: Task, n: int) -> str:
    """float32 out of the low words of 64-bit scales (layout.packing.from_uint64), masked."""
    words = f"<{2 * LANES} x i32>"
    both = code.load(words, code.at(task.scale, code.add(task.channel, n), "i64"), 8)
    low = code.shuffle(words, both, [2 * i for i in range(LANES)])
    mask = code.let(f"trunc i64 {task.word['mask']} to i32")
    mask = code.let(f"insertelement {I32} poison, i32 {mask}, i32 0")
    mask = code.shuffle(I32, mask, [0] * LANES)
    return code.let(f"bitcast {I32} {code.let(f'and {I32} {low}, {mask}')} to {F32}")
