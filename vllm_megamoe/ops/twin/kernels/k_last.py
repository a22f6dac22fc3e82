"""The kernel for MX weights, which lie K last, [N, K]: sums in registers, lane by lane along K, added up at the end.

For many rows of x, the codes of a task are unpacked once into memory that stays near. A sum runs over K in one order,
whatever the number of rows, threads or registers: a row's bits do not depend on them.
"""

from collections.abc import Callable

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.twin.kernels.code import F32, LANES, Code
from vllm_megamoe.ops.twin.kernels.decode import e8m0, mx_group
from vllm_megamoe.ops.twin.kernels.task import Nest, Task, row_tiles, rows_from

TILES = (4, 2, 1)
"""Rows that are computed together."""

ROWS = 32
"""Most rows of a group."""

UNPACKED_CHUNK = 16
"""MX groups of a chunk whose codes are unpacked."""

Turn = Callable[[str, int, list[str]], list[str]]

DOT_CHANNELS, MOST_CHANNELS = 16, 64
"""Channels of a task of `dotted`: multiples of the first, the rows of an NZ block, up to the second."""


_SCALES = 4
"""MX groups whose scales are read at a time."""

_CHANNELS = 4
"""Channels that are computed together at most: more reads at a time than a processor follows are slow."""


def dotted(element: AclDtype, registers: int, intrinsic: str, unpacked: bool) -> Nest:
    """MX codes [N, K] with E8M0 scales, in blocks or rows; K is a multiple of 32, N of 16.

    x holds, for FP4, the even inputs of each 32 before the odd ones.

    Args:
        element: of the weights.
        registers: vectors that the processor holds.
        intrinsic: see `decode.mx_group`.
        unpacked: whether to unpack the weights of a task once for all rows.
    """
    read, group_bytes = mx_group(element, intrinsic)

    def nest(code: Code, task: Task) -> None:
        groups = code.let(f"lshr i64 {task.word['inputs']}, 5")
        channels = task.word["block"]
        sums = code.memory(ROWS * (DOT_CHANNELS if unpacked else MOST_CHANNELS) * LANES)
        scratch = code.memory(DOT_CHANNELS * UNPACKED_CHUNK * 2 * LANES) if unpacked else ""
        elements = code.times(task.rows, code.times(channels, LANES))
        code.each(0, elements, LANES, lambda n: code.store(F32, "zeroinitializer", code.at(sums, n, "float"), 64))

        def place_of(g: str) -> str:
            block = code.let(f"lshr i64 {g}, {task.word['halves']}")
            second = code.let(f"sub i64 {g}, {code.let(f'shl i64 {block}, ' + task.word['halves'])}")
            return code.add(code.times(block, task.word["k_step"]), code.times(second, group_bytes))

        def fetch(g: str) -> None:
            """Ask for a block's bytes that the next chunk reads: no processor foresees such strides."""
            start = code.at(task.weight, code.add(place_of(g), code.times(task.channel, task.word["c_step"])))

            def line(at: str, values: list[str]) -> list[str]:
                code.do(f"call void @llvm.prefetch.p0(ptr {code.at(start, at)}, i32 0, i32 3, i32 1)")
                return values

            code.while_room("0", task.word["ahead"], 64, [], line)

        def scaled(g: str, scales: list[str], width: int) -> list[list[str]]:
            """For each of `width` groups the scale of each channel, in all lanes."""
            held = [e8m0(code, code.at(scale, g), width) for scale in scales]
            kind = f"<{width} x float>"
            return [[code.shuffle(kind, one, [i] * LANES) for one in held] for i in range(width)]

        def by_groups(first: str, stop: str, carried: list[str], turn: Turn) -> list[str]:
            """`turn(group, groups together, values) -> new values`, as many groups together as scales are read."""
            before = [(F32, value) for value in carried]
            g, some = code.while_room(first, stop, _SCALES, before, lambda g, old: turn(g, _SCALES, old))
            before = [(F32, value) for value in some]
            return code.while_room(g, stop, 1, before, lambda g, old: turn(g, 1, old))[1]

        def codes_of(n: str, count: int) -> tuple[list[str], list[str]]:
            channel = code.add(task.channel, n)
            return (
                rows_from(code, task.weight, channel, task.word["c_step"], count),
                rows_from(code, task.scale, channel, task.word["scale_row"], count),
            )

        def unpacked_at(n: str, g: str, first: str) -> str:
            numbers = code.times(code.let(f"sub i64 {g}, {first}"), 2 * LANES)
            return code.at(code.at(scratch, code.times(n, 2 * LANES * UNPACKED_CHUNK), "float"), numbers, "float")

        def unpack(n: str, first: str, stop: str) -> None:
            """Channels n and the three behind it."""
            codes, scales = codes_of(n, _CHANNELS)

            def turn(g: str, width: int, old: list[str]) -> list[str]:
                for i, factors in enumerate(scaled(g, scales, width)):
                    group = code.add(g, i)
                    offset = place_of(group)
                    for c, factor in enumerate(factors):
                        target = unpacked_at(code.add(n, c), group, first)
                        for half, value in enumerate(read(code, code.at(codes[c], offset), factor)):
                            code.store(F32, value, code.at(target, half * LANES, "float"), 64)
                return old

            by_groups(first, stop, [], turn)

        def some_channels(n: str, count: int, row: str, rows: int, first: str, stop: str) -> None:
            xs = rows_from(code, task.x, row, task.x_row, rows)
            row_bytes = code.times(channels, 4 * LANES)
            own = rows_from(code, code.at(sums, code.times(n, 4 * LANES)), row, row_bytes, rows)
            places = [code.at(one_row, c * LANES, "float") for one_row in own for c in range(count)]
            codes, scales = ([], []) if unpacked else codes_of(n, count)

            def turn(g: str, width: int, old: list[str]) -> list[str]:
                factors = [] if unpacked else scaled(g, scales, width)
                new = list(old)
                for i in range(width):
                    group = code.add(g, i)
                    place, offset = code.times(group, 2 * LANES), "" if unpacked else place_of(group)
                    inputs = [vectors(code, code.at(x, place, "float"), 4) for x in xs]
                    for c in range(count):
                        if unpacked:
                            values = vectors(code, unpacked_at(code.add(n, c), group, first), 64)
                        else:
                            values = read(code, code.at(codes[c], offset), factors[i][c])
                        for m, x in enumerate(inputs):
                            for value, given in zip(values, x, strict=True):
                                new[m * count + c] = code.fma(given, value, new[m * count + c])
                return new

            found = by_groups(first, stop, [code.load(F32, place, 64) for place in places], turn)
            for place, value in zip(places, found, strict=True):
                code.store(F32, value, place, 64)

        def chunk(first: str) -> None:
            stop = code.least(code.add(first, task.word["chunk"]), groups)
            following = code.least(code.add(stop, task.word["chunk"]), groups)

            def ahead(g: str, values: list[str]) -> list[str]:
                fetch(g)
                return values

            code.while_room(stop, following, 1, [], ahead)
            if unpacked:
                code.each(0, channels, _CHANNELS, lambda n: unpack(n, first, stop))

            def tile(row: str, rows: int) -> None:
                count = min(_CHANNELS, max(1, registers // 2 // rows))
                code.each(0, channels, count, lambda n: some_channels(n, count, row, rows, first, stop))

            row_tiles(code, task, TILES, tile)

        code.each(0, groups, task.word["chunk"], chunk)

        def finish(row: str) -> None:
            out = code.at(task.out, code.times(row, task.out_row))
            own = code.at(sums, code.times(code.times(row, channels), LANES), "float")

            def one_channel(n: str) -> None:
                value = code.load(F32, code.at(own, code.times(n, LANES), "float"), 64)
                code.store("float", _added_up(code, value), code.at(out, n, "float"))

            code.each(0, channels, 1, one_channel)

        code.each(0, task.rows, 1, finish)

    return nest


def vectors(code: Code, pointer: str, align: int) -> list[str]:
    """The 32 float32 at an address."""
    return [code.load(F32, code.at(pointer, half * LANES, "float"), align) for half in range(2)]


def _added_up(code: Code, value: str) -> str:
    """The sum of all lanes, halves onto halves: the same order everywhere."""
    width = LANES
    while width > 1:
        kind, half = f"<{width} x float>", width // 2
        parts = [code.shuffle(kind, value, range(at, at + half)) for at in (0, half)]
        value = code.let(f"fadd <{half} x float> {parts[0]}, {parts[1]}")
        width = half
    return code.let(f"extractelement <1 x float> {value}, i32 0")
