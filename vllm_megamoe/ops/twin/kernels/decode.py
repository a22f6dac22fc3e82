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
    element = kind.split(" x ")[1].rstrip(">")
    return "<" + ", ".join(f"{element} {number}" for _ in range(LANES)) + ">"


@dataclass(frozen=True, slots=True)
class Decoder:
    """How one load is read.

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


def _from_fp16(code: Code, bits: str) -> str:
    return code.let(f"fpext {F16} {code.let(f'bitcast {I16} {bits} to {F16}')} to {F32}")


def _shifted(code: Code, wide: str, left: int, right: int, keep: int) -> str:
    """(wide << left >> right) & keep, signs extended."""
    found = code.let(f"shl {I16} {wide}, {every(I16, left)}")
    if right:
        found = code.let(f"ashr {I16} {found}, {every(I16, right)}")
    return code.let(f"and {I16} {found}, {every(I16, keep)}")


def _e4m3(code: Code, pointer: str) -> list[str]:
    stored = code.load(I8, pointer)
    bits = _shifted(code, code.let(f"sext {I8} {stored} to {I16}"), 7, 0, -0x4080)
    # E4M3's only NaN; fp16 would read a number.
    magnitude = code.let(f"and {I8} {stored}, {every(I8, 0x7F)}")
    special = code.let(f"icmp eq {I8} {magnitude}, {every(I8, 0x7F)}")
    return [_from_fp16(code, code.let(f"select {_BOOLS} {special}, {I16} {every(I16, 0x7E00)}, {I16} {bits}"))]


def _e5m2(code: Code, pointer: str) -> list[str]:
    wide = code.let(f"zext {I8} {code.load(I8, pointer)} to {I16}")
    return [_from_fp16(code, code.let(f"shl {I16} {wide}, {every(I16, 8)}"))]


def _e2m1(code: Code, pointer: str) -> list[str]:
    wide = code.let(f"sext {I8} {code.load(I8, pointer)} to {I16}")
    return [_from_fp16(code, _shifted(code, wide, *way, -0x7200)) for way in ((12, 3), (5, 0))]


DECODERS: dict[AclDtype, Decoder] = {
    AclDtype.BF16: Decoder(32, 1, _bf16),
    AclDtype.INT8: Decoder(16, 1, _int8),
    AclDtype.INT4: Decoder(16, 2, _int4),
    AclDtype.FLOAT8_E4M3FN: Decoder(16, 1, _e4m3),
    AclDtype.FLOAT8_E5M2: Decoder(16, 1, _e5m2),
    AclDtype.FLOAT4_E2M1: Decoder(16, 2, _e2m1),
}
