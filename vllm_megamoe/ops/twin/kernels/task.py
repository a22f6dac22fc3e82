"""What a kernel is told, and how threads share its work.

One function does one product of all groups: a group is an expert with some rows. Threads take tasks, a block of output
channels of one group each, from a common counter until none is left. Every function is told by a frame of int64 words
(`FRAME`), and by an entry of words for each group (`ENTRY`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_megamoe.ops.twin.kernels.code import F32, I32, LANES, Code
from vllm_megamoe.ops.twin.kernels.decode import PERMUTE

DOT_PRODUCT = "llvm.x86.avx512.vpdpbusd.512"
"""AVX512_VNNI: to each int32 it adds four products of unsigned with signed bytes."""

PAIR_PRODUCT = "llvm.x86.avx512bf16.dpbf16ps.512"
"""AVX512_BF16: to each float32 it adds two products of BF16 numbers, one after the other; subnormals count as 0."""

_BF16_PAIRS = f"<{2 * LANES} x bfloat>"

FRAME = (
    "next",  # task that is taken next
    "tasks",
    "blocks",  # tasks of a group
    "groups",  # address of the entries
    "x",  # address of float32 [rows, inputs], for `integers` int8, for products of pairs BF16
    "offsets",  # address of int32 [rows], where the sums of `integers` start
    "out",  # address of float32 [rows, outputs]
    "inputs",
    "outputs",
    "k_step",  # bytes from one K to the next; K last: from one block of a channel's bytes to the next
    "c_step",  # bytes from 32 bytes of channels to the next; K last: from one channel to the next
    "block",  # channels of a task
    "scale_row",  # E8M0 bytes of a channel
    "chunk",  # MX groups that all rows go through before the next ones
    "ahead",  # bytes of 16 channels of a group that lie together and should be asked for early, 0 for none
    "halves",  # 1 where two MX groups share a block, else 0
    "mask",  # kept bits of a channel scale
)
ENTRY = ("weight", "scale", "first_row", "rows")


@dataclass(frozen=True, slots=True)
class Task:
    """What a task is told, as values of the function.

    Attributes:
        word: of the frame.
        weight, scale: addresses of the expert's.
        x, offsets, out: addresses of the group's first row; out at its first channel.
        rows: of the group.
        channel: first channel.
        x_row, out_row: bytes of a row.
    """

    word: dict[str, str]
    weight: str
    scale: str
    x: str
    offsets: str
    out: str
    rows: str
    channel: str
    x_row: str
    out_row: str


Nest = Callable[[Code, Task], None]


def function(nest: Nest, x_bytes: int = 4) -> str:
    """The module of one kernel: `void run(frame)`, which threads may run at the same time on one frame.

    Args:
        nest: its loops.
        x_bytes: of an element of x.
    """
    code = Code()
    word = {
        name: code.load("ptr" if name in ("groups", "x", "offsets", "out") else "i64", code.at("%frame", at, "i64"), 8)
        for at, name in enumerate(FRAME)
        if name != "next"
    }
    x_row, out_row = code.times(word["inputs"], x_bytes), code.times(word["outputs"], 4)
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
    offsets = code.at(word["offsets"], first, "float")
    nest(code, Task(word, weight, scale, x, offsets, out, rows, channel, x_row, out_row))
    code.go(take)
    code.label(end)
    code.do("ret void")
    text = code.text()
    declared = [f"declare {F32} @llvm.fma.v{LANES}f32({F32}, {F32}, {F32})"]
    if "llvm.prefetch" in text:
        declared.append("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    if DOT_PRODUCT in text:
        declared.append(f"declare {I32} @{DOT_PRODUCT}({I32}, {I32}, {I32})")
    if PAIR_PRODUCT in text:
        declared.append(f"declare {F32} @{PAIR_PRODUCT}({F32}, {_BF16_PAIRS}, {_BF16_PAIRS})")
    if PERMUTE in text:
        declared.append(f"declare {F32} @{PERMUTE}({F32}, {I32})")
    return "\n".join([f"define void @run(ptr %frame) {{\n{text}\n}}", *declared, ""])


def multiply_add(code: Code, x: str, weights: str, old: str, *, pairs: bool) -> str:
    """old + x * weights for 16 channels; of `pairs`, each lane holds the BF16 numbers of two K's behind one another."""
    if not pairs:
        return code.fma(x, weights, old)
    two = [code.let(f"bitcast {F32} {value} to {_BF16_PAIRS}") for value in (weights, x)]
    return code.let(f"call {F32} @{PAIR_PRODUCT}({F32} {old}, {_BF16_PAIRS} {two[0]}, {_BF16_PAIRS} {two[1]})")


def row_tiles(code: Code, task: Task, tiles: Sequence[int], turn: Callable[[str, int], None]) -> None:
    """`turn(row, rows)` for all rows of the group: as many at a time as `tiles` says, the last ones in fewer."""
    row = "0"
    for rows in tiles:

        def some(at: str, values: list[str], rows: int = rows) -> list[str]:
            turn(at, rows)
            return values

        row, _ = code.while_room(row, task.rows, rows, [], some)


def rows_from(code: Code, base: str, row: str, step: str, rows: int) -> list[str]:
    """Addresses of some rows behind one another."""
    found = [code.at(base, code.times(row, step))]
    while len(found) < rows:
        found.append(code.at(found[-1], step))
    return found
