"""One value inside and one outside, at least, for every rule and profile: limits written out from the documents.

Nothing here is read from the table of limits. The comments name the lines that a number stands in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from profiles.legal import (
    C0_32,
    E4M3,
    E5M2,
    FP4,
    NZ,
    Change,
    buffer,
    call,
    routed,
)

LEGAL = Change()


@dataclass(frozen=True)
class Case:
    """What a rule says in some profiles.

    `message` is a pattern of the rejection; `silent` one of what the device would do, empty where it rejects itself.
    """

    rule: str
    profiles: tuple[str, ...]
    inside: tuple[Change, ...]
    outside: tuple[Change, ...]
    message: str
    silent: str = ""


CASES: list[Case] = []


def case(
    rule: str,
    profiles: Iterable[str],
    inside: Iterable[Change],
    outside: Iterable[Change],
    message: str,
    silent: str = "",
) -> None:
    CASES.append(Case(rule, tuple(profiles), tuple(inside), tuple(outside), message, silent))


def ranks(*sizes: int) -> list[Change]:
    """Communicators of these sizes, with two experts on each rank, or one where there are many."""
    return [buffer(ep_world_size=n, num_experts=n * (2 if n < 600 else 1)) for n in sizes]


def each(make: Any, name: str, *values: Any) -> list[Change]:
    """One change for each value of a field."""
    return [make(**{name: value}) for value in values]


modes = {
    (mode, out): buffer(dispatch_quant_mode=mode, dispatch_quant_out_dtype=out)
    for mode in (0, 2, 4)
    for out in (None, "BF16", "INT8", E4M3, E5M2, FP4)
}
INT8 = modes[2, "INT8"] | routed(element1="INT8", element2="INT8", format1=NZ, format2=NZ, has_scales=True)
# with twice the capacity, which a3@9.1 wants
INT4 = INT8 | routed(element1="INT4", element2="INT4", has_bias=True) | buffer(max_recv_token_num=512)
TWO_BYTES = modes[4, E5M2] | routed(element1=E5M2, element2=E5M2)
A8W4 = routed(element1=FP4, element2=FP4, format1=C0_32, format2=C0_32)
A4W4 = modes[4, FP4] | routed(element1=FP4, element2=FP4, format1=NZ, format2=C0_32)
GIVEN = modes[0, E4M3] | call(x_dtype=E4M3, has_scales=True)
