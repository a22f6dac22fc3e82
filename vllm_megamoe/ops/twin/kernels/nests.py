"""The loops: which weights are read in which order, and where sums are kept meanwhile.

One function does one product of all groups: a group is an expert with up to `GROUP_ROWS` rows. Threads take tasks, a
block of output channels of one group each, from a common counter until none is left. Every function is told by a frame
of int64 words (`FRAME`), and by an entry of words for each group (`ENTRY`).

    k_first, ND    `streamed`   sums in memory; a few rows of K at a time, along whole rows of the block: a long read
    k_first, NZ    `tiled`      sums in registers, 32 or 64 channels; K runs along the bytes
    k_last         `dotted`     sums in registers, lane by lane along K, added up at the end; MX scales on the way

A sum runs over K in one order, whatever the number of rows, threads or registers: a row's bits do not depend on them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.twin.kernels.code import F32, I32, LANES, Code
from vllm_megamoe.ops.twin.kernels.decode import DECODERS, PERMUTE, e8m0, mx_group

FRAME = (
    "next",  # task that is taken next
    "tasks",
    "blocks",  # tasks of a group
    "groups",  # address of the entries
    "x",  # address of float32 [rows, inputs]
    "out",  # address of float32 [rows, outputs]
    "inputs",
    "outputs",
    "k_step",  # bytes from one K to the next; where dotted, from one block of a channel's bytes to the next
    "c_step",  # bytes from 32 bytes of channels to the next; where dotted, from one channel to the next
    "block",  # channels of a task
    "scale_row",  # E8M0 bytes of a channel
    "chunk",  # MX groups that all rows go through before the next ones
    "ahead",  # bytes of 16 channels of a group that lie together and should be asked for early, 0 for none
    "halves",  # 1 where two MX groups share a block, else 0
    "mask",  # kept bits of a channel scale
)
ENTRY = ("weight", "scale", "first_row", "rows")
GROUP_ROWS = 32
BYTE_BLOCK = 32
"""Bytes of a row of an NZ block."""

CHUNK = 512
"""Inputs that are summed at a time in `tiled`: a tile of weights stays in the first cache, and integers exact."""

_TILES = (4, 2, 1)
"""Rows that are computed together."""

_STREAM_STEP = 16
"""Rows of K that `streamed` takes at a time."""

_INTEGERS = (AclDtype.INT8, AclDtype.INT4)


@dataclass(frozen=True, slots=True)
class Task:
    """What a task is told, as values of the function.

    Attributes:
        word: of the frame.
        weight, scale: addresses of the expert's.
        x, out: addresses of the group's first row; out at its first channel.
        rows: of the group.
        channel: first channel.
        x_row, out_row: bytes of a row.
    """

    word: dict[str, str]
    weight: str
    scale: str
    x: str
    out: str
    rows: str
    channel: str
    x_row: str
    out_row: str


Nest = Callable[[Code, Task], None]


def function(nest: Nest) -> str:
    """The module of one kernel: `void run(frame)`, which threads may run at the same time on one frame."""
    code = Code()
    word = {
        name: code.load("ptr" if name in ("groups", "x", "out") else "i64", code.at("%frame", at, "i64"), 8)
        for at, name in enumerate(FRAME)
        if name != "next"
    }
    x_row, out_row = code.times(word["inputs"], 4), code.times(word["outputs"], 4)
    take, work, end = (code.new_label(name) for name in ("take", "work", "end"))
    code.go(take)
    code.label(take)
    number = code.let("atomicrmw add ptr %frame, i64 1 monotonic")
    code.branch(code.let(f"icmp ult i64 {number}, {word['tasks']}"), work, end)
    code.label(work)
    group, block = code.let(f"udiv i64 {number}, {word['blocks']}"), code.let(f"urem i64 {number}, {word['blocks']}")
    entry = code.at(word["groups"], code.times(group, len(ENTRY)), "i64")
    weight, scale = (code.load("ptr", code.at(entry, at, "i64"), 8) for at in (0, 1))
    first, rows = (code.load("i64", code.at(entry, at, "i64"), 8) for at in (2, 3))
    channel = code.times(block, word["block"])
    x = code.at(word["x"], code.times(first, x_row))
    out = code.at(code.at(word["out"], code.times(first, out_row)), channel, "float")
    nest(code, Task(word, weight, scale, x, out, rows, channel, x_row, out_row))
    code.go(take)
    code.label(end)
    code.do("ret void")
    text = code.text()
    declared = [f"declare {F32} @llvm.fma.v{LANES}f32({F32}, {F32}, {F32})"]
    if "llvm.prefetch" in text:
        declared.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    if PERMUTE in text:
        declared.append(f"declare {F32} @{PERMUTE}({F32}, {I32})")
    return "\n".join([f"define void @run(ptr %frame) {{\n{text}\n}}", *declared, ""])


def _row_tiles(code: Code, task: Task, turn: Callable[[str, int], None]) -> None:
    """`turn(row, rows)` for all rows of the group, four at a time, then what is left."""
    row = "0"
    for rows in _TILES:

        def some(at: str, values: list[str], rows: int = rows) -> list[str]:
            turn(at, rows)
            return values

        row, _ = code.while_room(row, task.rows, rows, [], some)


def _rows_from(code: Code, base: str, row: str, step: str, rows: int) -> list[str]:
    found = [code.at(base, code.times(row, step))]
    while len(found) < rows:
        found.append(code.at(found[-1], step))
    return found


def streamed(registers: int) -> Nest:
    """BF16 [K, N], row by row; K is a multiple of 16, N of 16."""
    decoder = DECODERS[AclDtype.BF16]

    def nest(code: Code, task: Task) -> None:
        left = code.let(f"sub i64 {task.word['outputs']}, {task.channel}")
        width = code.least(task.word["block"], left)
        weight = code.at(task.weight, task.channel, "i16")

        def zero(row: str) -> None:
            out = code.at(task.out, code.times(row, task.out_row))
            code.each(0, width, LANES, lambda n: code.store(F32, "zeroinitializer", code.at(out, n, "float")))

        code.each(0, task.rows, 1, zero)

        def step(k: str) -> None:
            _row_tiles(code, task, lambda row, rows: tile(k, row, rows))

        def tile(first: str, row: str, rows: int) -> None:
            together = min(_STREAM_STEP, registers // 2 // rows)
            xs = _rows_from(code, task.x, row, task.x_row, rows)
            outs = _rows_from(code, task.out, row, task.out_row, rows)

            def some_k(k: str) -> None:
                wide = [[code.splat(code.at(x, code.add(k, u), "float")) for u in range(together)] for x in xs]
                starts = _rows_from(code, weight, k, task.word["k_step"], together)

                def along(n: str) -> None:
                    places = [code.at(out, n, "float") for out in outs]
                    sums = [code.load(F32, place, 4) for place in places]
                    for u, start in enumerate(starts):
                        (value,) = decoder.read(code, code.at(start, n, "i16"))
                        sums = [code.fma(row_x[u], value, old) for row_x, old in zip(wide, sums, strict=True)]
                    for place, new in zip(places, sums, strict=True):
                        code.store(F32, new, place)

                code.each(0, width, LANES, along)

            code.each(first, code.add(first, _STREAM_STEP), together, some_k)

        code.each(0, task.word["inputs"], _STREAM_STEP, step)

    return nest


def tiled(element: AclDtype, registers: int, channels: int) -> Nest:
    """BF16, INT8 or INT4, K first, in blocks or rows; integer sums times the channel scale.

    Args:
        element: of the weights.
        registers: vectors that the processor holds.
        channels: of a task, 32 or 64; N is a multiple of it.
    """
    decoder = DECODERS[element]
    per_load = LANES * decoder.vectors
    integers = element in _INTEGERS
    kept = I32 if integers else F32

    def nest(code: Code, task: Task) -> None:
        sums = code.memory(GROUP_ROWS * channels)
        first_byte = code.let(f"udiv i64 {code.times(task.channel, decoder.load_bytes)}, {per_load}")
        block = code.times(code.let(f"udiv i64 {first_byte}, {BYTE_BLOCK}"), task.word["c_step"])
        weight = code.at(code.at(task.weight, block), code.let(f"urem i64 {first_byte}, {BYTE_BLOCK}"))
        loads = []
        for at in range(channels // per_load):
            blocks, rest = divmod(at * decoder.load_bytes, BYTE_BLOCK)
            loads.append(code.at(code.at(weight, code.times(task.word["c_step"], blocks)), rest))
        elements = code.times(task.rows, channels)
        code.each(0, elements, LANES, lambda n: code.store(F32, "zeroinitializer", code.at(sums, n, "float"), 64))

        def chunk(first: str) -> None:
            stop = code.least(code.add(first, CHUNK), task.word["inputs"])
            _row_tiles(code, task, lambda row, rows: tile(first, stop, row, rows))

        def tile(first: str, stop: str, row: str, rows: int) -> None:
            xs = _rows_from(code, task.x, row, task.x_row, rows)
            held = [code.at(sums, code.times(code.add(row, m), channels), "float") for m in range(rows)]
            most = max(1, registers * 3 // 4 // rows // decoder.vectors)
            together = 1 << (most.bit_length() - 1)
            for start in range(0, len(loads), together):
                some = loads[start : start + together]
                count = len(some) * decoder.vectors
                places = [code.at(one, start * per_load + v * LANES, "float") for one in held for v in range(count)]
                carried = [(F32, "zeroinitializer" if integers else code.load(F32, p, 64)) for p in places]

                def turn(
                    k: str, old: list[str], some: list[str] = some, count: int = count, xs: list[str] = xs
                ) -> list[str]:
                    offset = code.times(k, task.word["k_step"])
                    values = [value for load in some for value in decoder.read(code, code.at(load, offset))]
                    wide = [code.splat(code.at(x, k, "float")) for x in xs]
                    return [code.fma(wide[i // count], values[i % count], one) for i, one in enumerate(old)]

                for place, new in zip(places, code.loop(first, stop, 1, carried, turn), strict=True):
                    if integers:
                        # Exact: up to 512 products of magnitude 2^14 at most.
                        more = code.let(f"fptosi {F32} {new} to {I32}")
                        new = code.let(f"add {I32} {code.load(I32, place, 64)}, {more}")
                    code.store(kept, new, place, 64)

        code.each(0, task.word["inputs"], CHUNK, chunk)

        def finish(row: str) -> None:
            out = code.at(task.out, code.times(row, task.out_row))
            held = code.at(sums, code.times(row, channels), "float")
            for at in range(channels // per_load):
                values = [
                    code.load(kept, code.at(held, at * per_load + v * LANES, "float"), 64)
                    for v in range(decoder.vectors)
                ]
                if integers:
                    values = [code.let(f"sitofp {I32} {value} to {F32}") for value in values]
                for v, value in enumerate(_side_by_side(code, values)):
                    n = at * per_load + v * LANES
                    if integers:
                        value = code.let(f"fmul {F32} {value}, {_channel_scale(code, task, n)}")
                    code.store(F32, value, code.at(out, n, "float"))

        code.each(0, task.rows, 1, finish)

    return nest


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


DOT_CHANNELS, MOST_CHANNELS = 16, 64
"""Channels of a task of `dotted`: multiples of the first, the rows of an NZ block, up to the second."""


_SCALES = 4
"""MX groups whose scales are read at a time."""

_MX_CHANNELS = 4
"""Channels that are computed together at most: more reads at a time than a processor follows are slow."""


def dotted(element: AclDtype, registers: int, intrinsic: str = "") -> Nest:
    """MX codes [N, K] with E8M0 scales, in blocks or rows; K is a multiple of 32, N of 16.

    x holds, for FP4, the even inputs of each 32 before the odd ones.

    Args:
        element: of the weights.
        registers: vectors that the processor holds.
        intrinsic: see `decode.mx_group`.
    """
    read, group_bytes = mx_group(element, intrinsic)

    def nest(code: Code, task: Task) -> None:
        groups = code.let(f"lshr i64 {task.word['inputs']}, 5")
        channels = task.word["block"]
        sums = code.memory(GROUP_ROWS * MOST_CHANNELS * LANES)
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

        def some_channels(n: str, count: int, row: str, rows: int, first: str, stop: str) -> None:
            channel = code.add(task.channel, n)
            xs = _rows_from(code, task.x, row, task.x_row, rows)
            codes = _rows_from(code, task.weight, channel, task.word["c_step"], count)
            scales = _rows_from(code, task.scale, channel, task.word["scale_row"], count)
            row_bytes = code.times(channels, 4 * LANES)
            first_row = code.at(sums, code.times(n, 4 * LANES))
            own = _rows_from(code, first_row, row, row_bytes, rows)
            places = [code.at(one_row, c * LANES, "float") for one_row in own for c in range(count)]

            def one(g: str, factors: list[str], old: list[str]) -> list[str]:
                offset, place = place_of(g), code.times(g, 2 * LANES)
                inputs = [
                    [code.load(F32, code.at(x, code.add(place, half * LANES), "float"), 4) for half in range(2)]
                    for x in xs
                ]
                new = list(old)
                for c in range(count):
                    values = read(code, code.at(codes[c], offset), factors[c])
                    for m, x in enumerate(inputs):
                        for value, given in zip(values, x, strict=True):
                            new[m * count + c] = code.fma(given, value, new[m * count + c])
                return new

            def turn(g: str, old: list[str], width: int) -> list[str]:
                held = [e8m0(code, code.at(scale, g), width) for scale in scales]
                for i in range(width):
                    factors = [code.shuffle(f"<{width} x float>", one_scale, [i] * LANES) for one_scale in held]
                    old = one(code.add(g, i), factors, old)
                return old

            before = [(F32, code.load(F32, place, 64)) for place in places]
            g, found = code.while_room(first, stop, _SCALES, before, lambda g, old: turn(g, old, _SCALES))
            carried = [(F32, value) for value in found]
            _, found = code.while_room(g, stop, 1, carried, lambda g, old: turn(g, old, 1))
            for place, value in zip(places, found, strict=True):
                code.store(F32, value, place, 64)

        def chunk(first: str) -> None:
            stop = code.least(code.add(first, task.word["chunk"]), groups)
            following = code.least(code.add(stop, task.word["chunk"]), groups)

            def ahead(g: str, values: list[str]) -> list[str]:
                fetch(g)
                return values

            code.while_room(stop, following, 1, [], ahead)

            def tile(row: str, rows: int) -> None:
                count = min(_MX_CHANNELS, max(1, registers // 2 // rows))
                code.each(0, channels, count, lambda n: some_channels(n, count, row, rows, first, stop))

            _row_tiles(code, task, tile)

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


def _added_up(code: Code, value: str) -> str:
    """The sum of all lanes, halves onto halves: the same order everywhere."""
    width = LANES
    while width > 1:
        kind, half = f"<{width} x float>", width // 2
        parts = [code.shuffle(kind, value, range(at, at + half)) for at in (0, half)]
        value = code.let(f"fadd <{half} x float> {parts[0]}, {parts[1]}")
        width = half
    return code.let(f"extractelement <1 x float> {value}, i32 0")
