"""The rule of the roundings, and one switch for each question that the operator's source leaves open."""

from dataclasses import dataclass
from typing import Literal, get_args

from vllm_megamoe.errors import ConfigError

Rule = Literal["kernel", "spec"]
"""`kernel` follows the device's rounding points, `spec` the documents' formulas without intermediate roundings."""

Nibbles = Literal["twos_complement", "offset_binary"]
ScaleBits = Literal["fp32", "tf32"]
Fp16Overflow = Literal["inf", "saturate"]
StaleSlots = Literal["zero", "nan", "old"]


@dataclass(frozen=True, slots=True)
class Numerics:
    """How the twin computes.

    Attributes:
        rule: `kernel` by default: the twin is the yardstick for the device.
        int4_nibbles: `twos_complement` because the kernel multiplies int4b_t and vllm-ascend packs so; the documents'
            int4 example packs `offset_binary` (x + 8), which that kernel would misread.
        scale_bits: `fp32` because this operator does not mask the channel scale; a sibling says that the fixpipe drops
            the low 13 bits (`tf32`).
        fp16_overflow: `inf` because that is IEEE's conversion and the fixpipe's saturation is not confirmed
            (`saturate`); concerns integer GEMM results above 65504 before the token scale.
        stale_slots: what a combine slot that nobody wrote holds. `zero` because runs must be repeatable; on the device
            it is old data (`nan` makes every use of one visible).
    """

    rule: Rule = "kernel"
    int4_nibbles: Nibbles = "twos_complement"
    scale_bits: ScaleBits = "fp32"
    fp16_overflow: Fp16Overflow = "inf"
    stale_slots: StaleSlots = "zero"

    def __post_init__(self) -> None:
        for name, field in self.__dataclass_fields__.items():
            value, known = getattr(self, name), get_args(field.type)
            if value not in known:
                raise ConfigError(f"numerics: {name}={value!r}; expected one of {', '.join(known)}.")
