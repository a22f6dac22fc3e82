"""The format of a layer's experts as a type: a known one with its facts, a mixture, or a tool's word that is unknown.

`use_cases` hold the same real numbers as the checkpoint; `lossy` ones need `requant=allow`, and their figures are those
of `profiles.losses`. This file imports no torch, so that a plan is made in a moment; what a format's tensors look like
stands in `checkpoint.stored`, which reads every format whose `unread` is empty (tests/checkpoint/test_formats.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_megamoe.profiles.losses import LOSSES, Loss
from vllm_megamoe.profiles.use_cases import UseCase


@dataclass(frozen=True, slots=True)
class FormatFacts:
    """A format under its stable name.

    Attributes:
        name: for machines, equal in all releases.
        label: for people.
        unread: why this version cannot read such experts, empty where it can.
        use_cases: operator scenarios that hold them exactly, the natural one first: it needs the fewest bytes.
        note: what a reader should know.
        stored: what the numbers are, a key of `profiles.losses.LOSSES`; empty where no conversion is known.
        likely: a use case among the lossy ones that most files of the format go to exactly, which only a load shows.
    """

    name: str
    label: str
    unread: str
    use_cases: tuple[str, ...]
    note: str
    stored: str = ""
    likely: str = ""

    @property
    def loads(self) -> bool:
        """Whether this version reads such experts."""
        return not self.unread

    @property
    def losses(self) -> Mapping[UseCase, Loss]:
        """Use cases that they can be converted to with an error, the likely one, then the smallest error first."""
        return dict(
            sorted(LOSSES.get(self.stored, {}).items(), key=lambda item: (item[0] != self.likely, item[1].most))
        )

    @property
    def lossy(self) -> tuple[str, ...]:
        """Names of these."""
        return tuple(use_case.value for use_case in self.losses)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the stored numbers are, whichever tool wrote them."""

    exact: tuple[str, ...]
    stored: str = ""
    note: str = ""
    likely: str = ""


_FREE_SCALE = _Kind((), "free scales")
_FREE_FP8 = _Kind((), "free scales", "a8w8-fp and a16w16 are exact where every scale is a power of two: seen at load")
_BF16 = _Kind(("a16w16",), "bf16")
_INT8 = _Kind(("a8w8-int",), "int8")
_INT4 = _Kind(("a8w4-int", "a8w8-int"), "int4")
_INT4_ZEROS = _Kind(("a8w8-int",), "int4", "codes minus zero point lie in -15 to 15: codes of INT8, not of INT4")
_TWO_STAGE = _Kind(
    (),
    "two stages",
    "a8w8-int is exact where every code times its group's number is a whole one of INT8: seen at load",
    "a8w8-int",
)
_BLOCK_E8M0 = _Kind(
    ("a8w8-fp", "a16w16"), "blocks of powers of two", "exact where every scale is a power of two: tested at load"
)
_MXFP8 = _Kind(("a8w8-fp", "a16w16"), "mxfp8")
_MXFP4 = _Kind(("a8w4-fp", "a4w4-fp", "a8w8-fp", "a16w16"), "mxfp4", "a16w16 takes four times the memory")
_W4A4 = _Kind(("a4w4-fp", "a8w4-fp", "a8w8-fp", "a16w16"), "mxfp4", "every MoE layer must be a4w4-fp or none")
_NONE = _Kind((), note="no conversion is known")

OWN_METHOD, OWN_PREFIX = "megamoe", "megamoe-"
"""`quant_method` of the package's own format, and the beginning of its formats' names, which end in the use case."""

_OWN = tuple(
    (OWN_PREFIX + case.value, f"this package's own format, {case.value}", _Kind((case.value,), "operands"))
    for case in UseCase
)

_TABLE: tuple[tuple[str, str, _Kind], ...] = (
    ("bf16", "BF16", _BF16),
    ("compressed-tensors-w8a8", "compressed-tensors int8 (W8A8)", _INT8),
    ("compressed-tensors-w8a16", "compressed-tensors int8 weights (W8A16)", _INT8),
    ("compressed-tensors-w8-group", "compressed-tensors int8 in groups or with zero points", _FREE_SCALE),
    ("compressed-tensors-w8a8-group", "compressed-tensors int8 in groups or with zero points (W8A8)", _FREE_SCALE),
    ("compressed-tensors-w4a8", "compressed-tensors int4 per channel (W4A8)", _INT4),
    ("compressed-tensors-w4a8-zeros", "compressed-tensors int4 per channel with zero points (W4A8)", _INT4_ZEROS),
    ("compressed-tensors-w4a8-group", "compressed-tensors int4 in groups (W4A8)", _FREE_SCALE),
    ("compressed-tensors-w4a16", "compressed-tensors int4 per channel (W4A16)", _INT4),
    ("compressed-tensors-w4a16-zeros", "compressed-tensors int4 per channel with zero points (W4A16)", _INT4_ZEROS),
    ("compressed-tensors-w4a16-group", "compressed-tensors int4 in groups (W4A16)", _FREE_SCALE),
    ("compressed-tensors-fp8", "compressed-tensors FP8 per channel or tensor", _FREE_FP8),
    ("compressed-tensors-fp8-block", "compressed-tensors FP8 in 128 x 128 blocks", _FREE_FP8),
    ("compressed-tensors-mxfp8", "compressed-tensors MXFP8", _MXFP8),
    ("compressed-tensors-mxfp4", "compressed-tensors MXFP4", _MXFP4),
    ("compressed-tensors-nvfp4", "compressed-tensors NVFP4", _FREE_SCALE),
    ("fp8", "FP8 per channel or tensor", _FREE_FP8),
    ("fp8-block", "FP8 in 128 x 128 blocks", _FREE_FP8),
    ("fp8-block-ue8m0", "FP8 in blocks whose scales are powers of two", _BLOCK_E8M0),
    ("deepseek-v4-fp4", "DeepSeek-V4's FP4 with e8m0 scales", _MXFP4),
    ("mxfp8", "MXFP8", _MXFP8),
    ("gpt-oss-mxfp4", "gpt-oss MXFP4 blocks", _MXFP4),
    ("msmodelslim-w8a8-dynamic", "msModelSlim W8A8_DYNAMIC", _INT8),
    ("msmodelslim-w8a8", "msModelSlim W8A8 with static activations", _INT8),
    ("msmodelslim-w8a8-mix", "msModelSlim W8A8_MIX", _INT8),
    ("msmodelslim-w8a16", "msModelSlim W8A16", _INT8),
    ("msmodelslim-w4a8-dynamic", "msModelSlim W4A8_DYNAMIC", _INT4),
    ("msmodelslim-w4a8-dynamic-group", "msModelSlim W4A8_DYNAMIC in groups", _TWO_STAGE),
    ("msmodelslim-w4a8-dynamic-old", "msModelSlim W4A8_DYNAMIC, one code per byte", _INT4),
    ("msmodelslim-w4a8-dynamic-old-group", "msModelSlim W4A8_DYNAMIC in groups, one code per byte", _TWO_STAGE),
    ("msmodelslim-w4a16", "msModelSlim W4A16", _FREE_SCALE),
    ("msmodelslim-w8a8-mxfp8", "msModelSlim W8A8_MXFP8", _MXFP8),
    ("msmodelslim-w4a8-mxfp", "msModelSlim W4A8_MXFP", _MXFP4),
    ("msmodelslim-w4a4-mxfp4", "msModelSlim W4A4_MXFP4", _W4A4),
    ("msmodelslim-w4a16-mxfp4", "msModelSlim W4A16_MXFP4", _MXFP4),
    ("msmodelslim-w4a4-mxfp4-dualscale", "msModelSlim W4A4_MXFP4_DUALSCALE", _NONE),
    ("msmodelslim-wfp8afp8-dynamic", "msModelSlim WFP8AFP8_DYNAMIC", _FREE_FP8),
    ("msmodelslim-w8a8fp8-dynamic", "msModelSlim W8A8FP8_DYNAMIC", _FREE_FP8),
    ("modelopt-nvfp4", "ModelOpt NVFP4", _FREE_SCALE),
    ("modelopt-w4a16-nvfp4", "ModelOpt W4A16_NVFP4", _FREE_SCALE),
    ("modelopt-fp8", "ModelOpt FP8", _FREE_FP8),
    ("modelopt-fp8-pb-wo", "ModelOpt FP8 in blocks", _FREE_FP8),
    ("modelopt-mxfp8", "ModelOpt MXFP8", _MXFP8),
    ("modelopt-mxfp4", "ModelOpt MXFP4", _MXFP4),
    ("modelopt-w4a8-mxfp4-fp8", "ModelOpt W4A8_MXFP4_FP8", _MXFP4),
    ("gptq-int4", "GPTQ int4 per channel, symmetric", _INT4),
    ("gptq-int4-zeros", "GPTQ int4 per channel with zero points", _INT4_ZEROS),
    ("gptq-int4-group", "GPTQ int4 in groups", _FREE_SCALE),
    ("gptq-int8", "GPTQ int8 per channel, symmetric", _INT8),
    ("gptq-int8-group", "GPTQ int8 in groups", _FREE_SCALE),
    ("awq-int4", "AWQ int4 per channel", _INT4_ZEROS),
    ("awq-int4-group", "AWQ int4 in groups", _FREE_SCALE),
    ("auto-round-int4", "AutoRound int4 per channel, symmetric", _INT4),
    ("auto-round-int4-zeros", "AutoRound int4 per channel with zero points", _INT4_ZEROS),
    ("auto-round-int4-group", "AutoRound int4 in groups", _FREE_SCALE),
    ("auto-round-int8", "AutoRound int8 per channel, symmetric", _INT8),
    ("auto-round-int8-group", "AutoRound int8 in groups", _FREE_SCALE),
    ("auto-round-mxfp4", "AutoRound MXFP4", _MXFP4),
    ("auto-round-mxfp8", "AutoRound MXFP8", _MXFP8),
    ("auto-round-nvfp4", "AutoRound NVFP4", _FREE_SCALE),
    ("auto-round-fp8", "AutoRound FP8", _FREE_FP8),
    ("quark-mxfp4", "Quark MXFP4", _MXFP4),
    ("quark-int8", "Quark int8 per channel or tensor", _INT8),
    ("quark-fp8", "Quark FP8 per channel or tensor", _FREE_FP8),
    *_OWN,
)

_UNREAD = {
    "gpt-oss-mxfp4": "its experts carry biases, and the operator has no place for them",
    "msmodelslim-w4a4-mxfp4-dualscale": "what its second scale (weight_dual_scale) means is not settled",
    "auto-round-fp8": "no file of this format has been at hand to read by",
}


def _facts(name: str, label: str, kind: _Kind) -> FormatFacts:
    plain = FormatFacts(name, label, _UNREAD.get(name, ""), kind.exact, kind.note, kind.stored, kind.likely)
    figures = ", ".join(f"{use_case.value} adds {loss}" for use_case, loss in plain.losses.items())
    return replace(plain, note="; ".join(filter(None, (figures, kind.note))))


FORMATS: dict[str, FormatFacts] = {row[0]: _facts(*row) for row in _TABLE}
"""Every format with a name, by that name."""


@dataclass(frozen=True, slots=True)
class ExpertsFormat(ABC):
    """How the experts of one layer are stored; one of Known, Mixed and Unknown."""

    @property
    @abstractmethod
    def facts(self) -> FormatFacts:
        """What it is and where it can go; a format that is not Known loads nothing and goes nowhere."""

    @property
    def name(self) -> str:
        """Its name for machines."""
        return self.facts.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Known(ExpertsFormat):
    """A format of the table.

    Attributes:
        key: its name there.
    """

    key: str

    @property
    def facts(self) -> FormatFacts:
        return FORMATS[self.key]


@dataclass(frozen=True, slots=True)
class Unknown(ExpertsFormat):
    """A quantisation that no row names.

    Attributes:
        word: what the tool that wrote it calls it.
    """

    word: str

    @property
    def facts(self) -> FormatFacts:
        return FormatFacts(self.word, self.word, "this quantisation is not known here", (), "no conversion is known")


@dataclass(frozen=True, slots=True)
class Mixed(ExpertsFormat):
    """Experts of one layer that are stored in different ways.

    Attributes:
        parts: each format with the first projection that has it, named within the layer (`7.up_proj`).
    """

    parts: tuple[tuple[ExpertsFormat, str], ...]

    @property
    def facts(self) -> FormatFacts:
        text = "mixed: " + ", ".join(f"{form} ({projection})" for form, projection in self.parts)
        why = "experts of one layer are stored in different ways, and the operator takes one way per layer"
        return FormatFacts("mixed", text, why, (), "no conversion is known")

    def __str__(self) -> str:
        return self.facts.label


BF16 = Known("bf16")
"""Experts that no tool quantised."""


def format_named(name: str) -> ExpertsFormat:
    """The format of that name, Unknown where the table has none."""
    return Known(name) if name in FORMATS else Unknown(name)


def one_format(found: Mapping[str, ExpertsFormat]) -> ExpertsFormat:
    """The one format of all projections of a layer, else their mixture; BF16 for none at all.

    Args:
        found: the format by projection, named within the layer.
    """
    first: dict[ExpertsFormat, str] = {}
    for projection, form in found.items():
        first.setdefault(form, projection)
    if len(first) > 1:
        return Mixed(tuple(first.items()))
    return next(iter(first), BF16)
