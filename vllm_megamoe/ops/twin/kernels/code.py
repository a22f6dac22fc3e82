"""LLVM's assembly language, written line by line: values, addresses, and loops with carried values.

The kernels are so small that they are written as LLVM reads them. It then turns vectors of 16 numbers into whatever the
processor has: one AVX-512 register, two of AVX2, four of NEON.
"""

from collections.abc import Callable, Sequence

LANES = 16
"""Numbers in a vector."""

F32, I32, I16, I8 = (f"<{LANES} x {element}>" for element in ("float", "i32", "i16", "i8"))

Carried = Sequence[tuple[str, str]]
"""Type and first value of what a loop hands from one turn to the next."""


class Code:
    """The body of one function; values are names such as `%7`, or numbers."""

    def __init__(self) -> None:
        self._memory: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._block = "start"

    def text(self) -> str:
        """All lines."""
        return "\n".join(["start:", *self._memory, *self._lines])

    def memory(self, floats: int) -> str:
        """Memory for float32 on the stack, taken once a call, wherever this stands."""
        name = self._name()
        self._memory.append(f"  {name} = alloca [{floats} x float], align 64")
        return name

    def _name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def let(self, expression: str) -> str:
        """A new value."""
        name = self._name()
        self.do(f"{name} = {expression}")
        return name

    def do(self, instruction: str) -> None:
        """An instruction without a value."""
        self._lines.append(f"  {instruction}")

    def new_label(self, what: str) -> str:
        """A name for a block."""
        self._count += 1
        return f"{what}{self._count}"

    def label(self, name: str) -> None:
        """Begin a block."""
        self._lines.append(f"{name}:")
        self._block = name

    def go(self, label: str) -> None:
        """Jump."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """Jump to one of two blocks."""
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def add(self, a: str, b: str | int) -> str:
        """a + b, int64."""
        return self.let(f"add i64 {a}, {b}")

    def times(self, a: str, b: str | int) -> str:
        """a * b, int64."""
        return self.let(f"mul i64 {a}, {b}")

    def least(self, a: str, b: str) -> str:
        """The smaller one, int64."""
        return self.let(f"select i1 {self.let(f'icmp ult i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def at(self, pointer: str, offset: str | int, element: str = "i8") -> str:
        """An address, `offset` elements behind another."""
        return self.let(f"getelementptr inbounds {element}, ptr {pointer}, i64 {offset}")

    def load(self, kind: str, pointer: str, align: int = 1) -> str:
        """What lies at an address."""
        return self.let(f"load {kind}, ptr {pointer}, align {align}")

    def store(self, kind: str, value: str, pointer: str, align: int = 4) -> None:
        """Write to an address."""
        self.do(f"store {kind} {value}, ptr {pointer}, align {align}")

    def splat(self, pointer: str) -> str:
        """The float32 at an address, in all lanes."""
        one = self.let(f"insertelement {F32} poison, float {self.load('float', pointer, 4)}, i32 0")
        return self.shuffle(F32, one, [0] * LANES)

    def shuffle(self, kind: str, vector: str, order: Sequence[int], second: str = "poison") -> str:
        """Elements of a vector, or of two behind one another, in another order."""
        chosen = ", ".join(f"i32 {place}" for place in order)
        return self.let(f"shufflevector {kind} {vector}, {kind} {second}, <{len(order)} x i32> <{chosen}>")

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c with one rounding."""
        return self.let(f"call {F32} @llvm.fma.v{LANES}f32({F32} {a}, {F32} {b}, {F32} {c})")

    def loop(
        self,
        start: str | int,
        stop: str | int,
        step: str | int,
        carried: Carried,
        turn: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """Run `turn(index, values) -> new values` for start, start + step, ... below stop; at least once.

        Returns:
            The values after the last turn.
        """
        before, head, after = self._block, self.new_label("loop"), self.new_label("done")
        self.go(head)
        self.label(head)
        index, values, place = self._name(), [self._name() for _ in carried], len(self._lines)
        new = turn(index, values)
        following = self.add(index, step)
        self.branch(self.let(f"icmp ult i64 {following}, {stop}"), head, after)
        phis = [f"  {index} = phi i64 [{start}, %{before}], [{following}, %{self._block}]"]
        for name, (kind, first), value in zip(values, carried, new, strict=True):
            phis.append(f"  {name} = phi {kind} [{first}, %{before}], [{value}, %{self._block}]")
        self._lines[place:place] = phis
        self.label(after)
        return new

    def each(self, start: str | int, stop: str | int, step: str | int, turn: Callable[[str], None]) -> None:
        """A loop that carries nothing; at least one turn."""

        def run(index: str, values: list[str]) -> list[str]:
            del values
            turn(index)
            return []

        self.loop(start, stop, step, [], run)

    def while_room(
        self, start: str, stop: str, step: int, carried: Carried, turn: Callable[[str, list[str]], list[str]]
    ) -> tuple[str, list[str]]:
        """As `loop`, as long as index + step <= stop, perhaps never; returns the index that is left, and the values."""
        before, head = self._block, self.new_label("room")
        body, after = self.new_label("body"), self.new_label("left")
        self.go(head)
        self.label(head)
        index, values, place = self._name(), [self._name() for _ in carried], len(self._lines)
        following = self.add(index, step)
        self.branch(self.let(f"icmp ule i64 {following}, {stop}"), body, after)
        self.label(body)
        new = turn(index, values)
        phis = [f"  {index} = phi i64 [{start}, %{before}], [{following}, %{self._block}]"]
        for name, (kind, first), value in zip(values, carried, new, strict=True):
            phis.append(f"  {name} = phi {kind} [{first}, %{before}], [{value}, %{self._block}]")
        self._lines[place:place] = phis
        self.go(head)
        self.label(after)
        return index, values
