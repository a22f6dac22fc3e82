"""Kinds of stored numbers: which use cases of the operator hold them exactly, and what the others cost.

Source of the exact mappings: facts/checkpoints.md 3 and 4. The losses are of Gaussian weights (see losses.py) and stand
here in per cent, lowest and highest of four widths; test_losses.py measures each of them again. They are no promise for
a checkpoint: another distribution loses otherwise (heavy tails lose twice as much in int8), so a loader that has the
weights at hand measures.
"""

from dataclasses import dataclass, field

USE_CASES = ("a16w16", "a8w8-int", "a8w4-int", "a8w8-fp", "a8w4-fp", "a4w4-fp")

BYTES = {"a16w16": 2.0, "a8w8-int": 1.0, "a8w4-int": 0.5, "a8w8-fp": 33 / 32, "a8w4-fp": 17 / 32, "a4w4-fp": 17 / 32}
"""Bytes of a weight in each use case, its MX scale counted, scales per channel not."""


@dataclass(frozen=True)
class Kind:
    """What is stored.

    Attributes:
        source: its name in losses.SOURCES.
        exact: use cases that hold the same real numbers, the natural one first: that which `use_case: auto` takes
            where the profile has it, because it needs the fewest bytes or is the recipe's own.
        lossy: use case -> lowest and highest loss in per cent on Gaussian weights.
        condition: when `exact` depends on the numbers: what has to be tested at load, tensor by tensor.
    """

    source: str
    exact: tuple[str, ...]
    lossy: dict[str, tuple[float, float]]
    condition: str = ""
    offered: tuple[str, ...] = field(default=())

    @property
    def answer(self) -> str:
        """`exact`, or `consent` where only lossy mappings exist."""
        return "exact" if self.exact else "consent"


_MX4 = (11.1, 11.6)
_FOUR_INT = (11.5, 16.5)
_EIGHT_INT = (0.60, 0.90)
_HALF = (0.13, 0.18)
_EIGHT_FP = (2.85, 3.05)

_TWO_INTS = {"a8w8-int": (0.62, 0.90), "a8w4-int": (11.5, 17.1)}

KINDS = {
    "bf16": Kind(
        "bf16",
        ("a16w16",),
        {"a8w8-int": _EIGHT_INT, "a8w4-int": _FOUR_INT, "a8w8-fp": _EIGHT_FP, "a8w4-fp": _MX4, "a4w4-fp": _MX4},
        offered=("a8w8-int", "a8w8-fp", "a8w4-int", "a8w4-fp", "a4w4-fp"),
    ),
    "fp16": Kind(
        "fp16",
        (),
        {
            "a16w16": _HALF,
            "a8w8-int": _EIGHT_INT,
            "a8w4-int": _FOUR_INT,
            "a8w8-fp": _EIGHT_FP,
            "a8w4-fp": _MX4,
            "a4w4-fp": _MX4,
        },
        condition="a16w16 is exact where every number is a bfloat16 (a re-saved BF16 model)",
        offered=("a16w16", "a8w8-int", "a8w8-fp"),
    ),
    "int8": Kind(
        "int8",
        ("a8w8-int",),
        {"a16w16": _HALF, "a8w4-int": _FOUR_INT, "a8w8-fp": _EIGHT_FP, "a8w4-fp": _MX4, "a4w4-fp": _MX4},
        offered=("a16w16", "a8w8-fp"),
    ),
    "int4": Kind(
        "int4",
        ("a8w4-int", "a8w8-int"),
        {"a16w16": _HALF, "a8w8-fp": (2.85, 3.30), "a8w4-fp": (9.6, 12.3), "a4w4-fp": (9.6, 12.3)},
        offered=("a16w16", "a8w8-fp"),
    ),
    "int4-group": Kind(
        "int4-group",
        (),
        {
            "a16w16": _HALF,
            "a8w8-int": (0.58, 0.90),
            "a8w4-int": (6.0, 16.5),
            "a8w8-fp": _EIGHT_FP,
            "a8w4-fp": (10.7, 11.4),
            "a4w4-fp": (10.7, 11.4),
        },
        offered=("a16w16", "a8w8-int", "a8w8-fp"),
    ),
    "int4-two-stage": Kind(
        "int4-group",
        (),
        {"a16w16": _HALF, "a8w8-int": (0.58, 0.90), "a8w8-fp": _EIGHT_FP},
        condition="a8w8-int is exact where every code * second scale is an integer of int8; else it rounds by at most "
        "half a step of the channel's scale",
        offered=("a8w8-int", "a16w16", "a8w8-fp"),
    ),
    "fp8-block": Kind(
        "fp8-block",
        (),
        {
            "a16w16": _HALF,
            **_TWO_INTS,
            "a8w8-fp": (2.5, 3.05),
            "a8w4-fp": _MX4,
            "a4w4-fp": _MX4,
        },
        condition="a8w8-fp and a16w16 are exact where every scale is a power of two",
        offered=("a8w8-fp", "a16w16", "a8w8-int"),
    ),
    "fp8-rows": Kind(
        "fp8-rows",
        (),
        {
            "a16w16": _HALF,
            **_TWO_INTS,
            "a8w8-fp": _EIGHT_FP,
            "a8w4-fp": _MX4,
            "a4w4-fp": _MX4,
        },
        condition="a8w8-fp and a16w16 are exact where every scale is a power of two",
        offered=("a8w8-fp", "a16w16", "a8w8-int"),
    ),
    "fp8-block-ue8m0": Kind(
        "fp8-block-ue8m0",
        ("a8w8-fp", "a16w16"),
        {**_TWO_INTS, "a8w4-fp": (11.6, 11.9), "a4w4-fp": (11.6, 11.9)},
        condition="the bits of every scale are tested: `scale_fmt` is a claim of the config",
        offered=("a8w8-int",),
    ),
    "mxfp8": Kind(
        "mxfp8",
        ("a8w8-fp", "a16w16"),
        {**_TWO_INTS, "a8w4-fp": (11.6, 11.9), "a4w4-fp": (11.6, 11.9)},
        condition="a16w16 is exact while scales lie in 2^-117 to 2^119: beyond, code * scale leaves bfloat16's normals",
        offered=("a8w8-int",),
    ),
    "mxfp4": Kind(
        "mxfp4",
        ("a8w4-fp", "a4w4-fp", "a8w8-fp", "a16w16"),
        _TWO_INTS,
        condition="a16w16 is exact while scales lie in 2^-125 to 2^125: beyond, code * scale leaves bfloat16's normals",
        offered=("a8w8-int",),
    ),
    "mxfp4-a4": Kind(
        "mxfp4",
        ("a4w4-fp", "a8w4-fp", "a8w8-fp", "a16w16"),
        _TWO_INTS,
        condition="a4w4-fp only where every MoE layer of the communicator is a4w4-fp",
        offered=("a8w8-int",),
    ),
    "nvfp4": Kind(
        "nvfp4",
        (),
        {
            "a16w16": _HALF,
            **_TWO_INTS,
            "a8w8-fp": (1.9, 3.05),
            "a8w4-fp": _MX4,
            "a4w4-fp": _MX4,
        },
        condition="a16w16 is exact where the tensor's own scale is a power of two",
        offered=("a8w8-fp", "a16w16", "a8w8-int"),
    ),
}
"""Every kind by its name."""
