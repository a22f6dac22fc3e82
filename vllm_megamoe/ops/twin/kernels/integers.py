"""The kernel for INT8 and INT4 in FRACTAL_NZ where the processor multiplies bytes and adds four products at a time.

Its instruction takes unsigned bytes on one side: weights are read as w + 128 (INT4: w + 8), and every row of sums
starts at minus that times the sum of its x, so that the int32 sums are those of w, to the bit.
"""

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.twin.kernels.code import F32, I32, LANES, Code
from vllm_megamoe.ops.twin.kernels.decode import every
from vllm_megamoe.ops.twin.kernels.k_first import BYTE_BLOCK, finish
from vllm_megamoe.ops.twin.kernels.task import DOT_PRODUCT, Nest, Task, row_tiles, rows_from

TILES = (6, 4, 2, 1)
"""Rows that are computed together."""

ROWS = 96
"""Most rows of a group."""

CHANNELS = 64
"""Of a task; N is a multiple of it."""

OFFSETS = {AclDtype.INT8: 128, AclDtype.INT4: 8}
"""What is added to every weight."""

_TOGETHER = 4
"""K's that one instruction adds."""

_CHUNK = 512
"""Inputs that all rows go through before the next ones: 32 KiB of weights."""

_BYTES = f"<{_TOGETHER * LANES} x i8>"


def bytewise(element: AclDtype) -> Nest:
    """INT8 or INT4 in FRACTAL_NZ, x int8; K is a multiple of 4, N of 64."""
    blocks = CHANNELS // BYTE_BLOCK if element is AclDtype.INT8 else 1

    def nest(code: Code, task: Task) -> None:
        sums = code.memory(ROWS * CHANNELS)
        block = code.let(f"udiv i64 {task.channel}, {CHANNELS // blocks}")
        first_block = code.at(task.weight, code.times(block, task.word["c_step"]))
        starts = [code.at(first_block, code.times(task.word["c_step"], at)) for at in range(blocks)]

        def begin(row: str) -> None:
            start = code.splat(code.at(task.offsets, row, "float"))
            held = code.at(sums, code.times(row, CHANNELS), "float")
            for at in range(0, CHANNELS, LANES):
                code.store(F32, start, code.at(held, at, "float"), 64)

        code.each(0, task.rows, 1, begin)

        def chunk(first: str) -> None:
            stop = code.least(code.add(first, _CHUNK), task.word["inputs"])
            row_tiles(code, task, TILES, lambda row, rows: tile(first, stop, row, rows))

        def tile(first: str, stop: str, row: str, rows: int) -> None:
            xs = rows_from(code, task.x, row, task.x_row, rows)
            held = rows_from(code, sums, row, str(4 * CHANNELS), rows)
            count = CHANNELS // LANES
            places = [code.at(one, v * LANES, "float") for one in held for v in range(count)]

            def turn(k: str, old: list[str]) -> list[str]:
                offset = code.times(k, BYTE_BLOCK)
                weights = [w for start in starts for w in read(code, code.at(start, offset), element)]
                given = [code.splat(code.at(x, k)) for x in xs]
                given = [code.let(f"bitcast {F32} {x} to {I32}") for x in given]
                return [
                    code.let(
                        f"call {I32} @{DOT_PRODUCT}({I32} {one}, {I32} {weights[i % count]}, {I32} {given[i // count]})"
                    )
                    for i, one in enumerate(old)
                ]

            carried = [(I32, code.load(I32, place, 64)) for place in places]
            for place, new in zip(places, code.loop(first, stop, _TOGETHER, carried, turn), strict=True):
                code.store(I32, new, place, 64)

        code.each(0, task.word["inputs"], _CHUNK, chunk)
        code.each(0, task.rows, 1, lambda row: finish(code, task, sums, row, element, CHANNELS))

    return nest


def read(code: Code, pointer: str, element: AclDtype) -> list[str]:
    """Four rows of an NZ block: unsigned bytes, the four K's of a channel side by side, 16 channels a vector.

    INT4: even channels and odd ones of each 32, as `finish` expects them.
    """
    size = _TOGETHER * LANES
    low, high = (code.load(_BYTES, code.at(pointer, at)) for at in (0, size))
    found = []
    for half in range(2):
        order = [k * BYTE_BLOCK + half * LANES + i for i in range(LANES) for k in range(_TOGETHER)]
        both = code.shuffle(_BYTES, low, order, high)
        if element is AclDtype.INT8:
            found.append(code.let(f"xor {_BYTES} {both}, {every(_BYTES, -128)}"))
            continue
        upper = code.let(f"lshr {_BYTES} {both}, {every(_BYTES, 4)}")
        found.append(
            code.let(f"xor {_BYTES} {code.let(f'and {_BYTES} {both}, {every(_BYTES, 15)}')}, {every(_BYTES, 8)}")
        )
        found.append(code.let(f"xor {_BYTES} {upper}, {every(_BYTES, 8)}"))
    return [code.let(f"bitcast {_BYTES} {value} to {I32}") for value in found]
