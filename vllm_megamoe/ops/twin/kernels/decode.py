"""Stored weights as vectors of float32, in registers.

INT4 and FP4 share bytes: a load gives the elements of the low nibbles, then those of the high ones. FP8 and FP4 codes
become float16 with the same sign, exponent and mantissa; their values are 2^shift times that (`gemm.FP16_SHIFT`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from vllm_megamoe.acl import AclDtype
from vllm_megamoe.ops.twin.kernels.code import F32, I8, I16, I32, LANES, Code

F16 = f"<{LANES} x half>"
_BOOLS = f"<{LANES} x i1>"


def every(kind: str, number: int) -> str:
    """A constant vector of one integer."""
    count, element = kind.strip("<>").split(" x ")
    return "<" + ", ".join(f"{element} {number}" for _ in range(int(count))) + ">"


@dataclass(frozen=True, slots=True)
class Decoder:
    """How one load of integers or BF16 is read.

    Attributes:
        load_bytes: of a load.
        vectors: that it gives.
        read: writes the code: address -> float32 vectors.
    """

    load_bytes: int
    vectors: int
    read: Callable[[Code, str], list[str]]


def _bf16(code: Code, pointer: str) -> list[str]:
    wide = code.let(f"zext {I16} {code.load(I16, pointer)} to {I32}")
    wide = code.let(f"shl {I32} {wide}, {every(I32, 16)}")
    return [code.let(f"bitcast {I32} {wide} to {F32}")]


def _int8(code: Code, pointer: str) -> list[str]:
    return [code.let(f"sitofp {I8} {code.load(I8, pointer)} to {F32}")]


def _int4(code: Code, pointer: str) -> list[str]:
    both = code.let(f"sext {I8} {code.load(I8, pointer)} to {I32}")
    low = code.let(f"ashr {I32} {code.let(f'shl {I32} {both}, {every(I32, 28)}')}, {every(I32, 28)}")
    high = code.let(f"ashr {I32} {both}, {every(I32, 4)}")
    return [code.let(f"sitofp {I32} {half} to {F32}") for half in (low, high)]


DECODERS: dict[AclDtype, Decoder] = {
    AclDtype.BF16: Decoder(32, 1, _bf16),
    AclDtype.INT8: Decoder(16, 1, _int8),
    AclDtype.INT4: Decoder(16, 2, _int4),
}
"""Weights that lie K first."""


def bf16_pairs(code: Code, first: str, second: str) -> list[str]:
    """32 channels of two K's that follow each other -> two vectors of 16 channels, a pair of BF16 in each lane."""
    kind = f"<{2 * LANES} x i16>"
    low, high = code.load(kind, first), code.load(kind, second)
    orders = [[at + i // 2 + 2 * LANES * (i % 2) for i in range(2 * LANES)] for at in (0, LANES)]
    return [code.let(f"bitcast {kind} {code.shuffle(kind, low, order, high)} to {F32}") for order in orders]


_CODES, _WORDS = f"<{2 * LANES} x i8>", f"<{2 * LANES} x i16>"
_BOOLS = f"<{2 * LANES} x i1>"
PERMUTE = "llvm.x86.avx512.permvar.sf.512"
"""AVX-512's look-up in a table of 16, by the low four bits of each index."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

MxReader = Callable[[Code, str, str], list[str]]
"""Writes the code: address of 32 codes, their scale in all lanes -> two vectors, scaled, times 2^-FP16_SHIFT."""


def mx_group(element: AclDtype, intrinsic: str = "") -> tuple[MxReader, int]:
    """How the 32 codes of an MX group are read, and their bytes.

    Args:
        element: E4M3, E5M2 or E2M1; the last gives the even elements, then the odd ones.
        intrinsic: PERMUTE where the processor has it.
    """
    if element is AclDtype.FLOAT4_E2M1:
        return (_e2m1_by_table if intrinsic else _e2m1), LANES
    return (_e5m2 if element is AclDtype.FLOAT8_E5M2 else _e4m3), 2 * LANES


def e8m0(code: Code, pointer: str, count: int) -> str:
    """Values of scale bytes, a vector: the byte is float32's exponent field; 0 and 255 have one bit more."""
    whole = f"<{count} x i32>"
    byte = code.let(f"zext <{count} x i8> {code.load(f'<{count} x i8>', pointer)} to {whole}")
    bits = code.let(f"shl {whole} {byte}, {every(whole, 23)}")
    above = code.let(f"and {whole} {code.let(f'add {whole} {byte}, {every(whole, 1)}')}, {every(whole, 255)}")
    end = code.let(f"icmp ult {whole} {above}, {every(whole, 2)}")
    special = code.let(f"select <{count} x i1> {end}, {whole} {every(whole, 1 << 22)}, {whole} zeroinitializer")
    return code.let(f"bitcast {whole} {code.let(f'or {whole} {bits}, {special}')} to <{count} x float>")


def _scaled(code: Code, bits: str, factor: str) -> str:
    value = code.let(f"fpext {F16} {code.let(f'bitcast {I16} {bits} to {F16}')} to {F32}")
    return code.let(f"fmul {F32} {value}, {factor}")


def _halves(code: Code, words: str, factor: str) -> list[str]:
    """32 numbers as fp16 bits -> two vectors."""
    return [_scaled(code, code.shuffle(_WORDS, words, range(at, at + LANES)), factor) for at in (0, LANES)]


def _e4m3(code: Code, pointer: str, factor: str) -> list[str]:
    wide = code.let(f"sext {_CODES} {code.load(_CODES, pointer)} to {_WORDS}")
    wide = code.let(f"shl {_WORDS} {wide}, {every(_WORDS, 7)}")
    magnitude = code.let(f"and {_WORDS} {wide}, {every(_WORDS, 0x3F80)}")
    special = code.let(f"icmp eq {_WORDS} {magnitude}, {every(_WORDS, 0x3F80)}")
    bits = code.let(f"and {_WORDS} {wide}, {every(_WORDS, -0x4080)}")
    # E4M3's only NaN; fp16 would read a number.
    bits = code.let(f"select {_BOOLS} {special}, {_WORDS} {every(_WORDS, 0x7E00)}, {_WORDS} {bits}")
    return _halves(code, bits, factor)


def _e5m2(code: Code, pointer: str, factor: str) -> list[str]:
    wide = code.let(f"zext {_CODES} {code.load(_CODES, pointer)} to {_WORDS}")
    return _halves(code, code.let(f"shl {_WORDS} {wide}, {every(_WORDS, 8)}"), factor)


def _e2m1(code: Code, pointer: str, factor: str) -> list[str]:
    wide = code.let(f"sext {I8} {code.load(I8, pointer)} to {I16}")
    low = code.let(f"ashr {I16} {code.let(f'shl {I16} {wide}, {every(I16, 12)}')}, {every(I16, 3)}")
    high = code.let(f"shl {I16} {wide}, {every(I16, 5)}")
    return [_scaled(code, code.let(f"and {I16} {bits}, {every(I16, -0x7200)}"), factor) for bits in (low, high)]


def _e2m1_by_table(code: Code, pointer: str, factor: str) -> list[str]:
    # As the other way has them: smaller by 2^14.
    numbers = [value * 2.0**-14 for value in (*_E2M1, *(-value for value in _E2M1))]
    table = "<" + ", ".join(f"float {number:.20e}" for number in numbers) + ">"
    scaled = code.let(f"fmul {F32} {table}, {factor}")
    low = code.let(f"zext {I8} {code.load(I8, pointer)} to {I32}")
    high = code.let(f"lshr {I32} {low}, {every(I32, 4)}")
    return [code.let(f"call {F32} @{PERMUTE}({F32} {scaled}, {I32} {index})") for index in (low, high)]
