"""A format that a checkpoint does not have yet: the base model's config planned as if a tool had quantised it."""

import difflib

from vllm_megamoe.checkpoint.formats import BF16, FORMATS, ExpertsFormat, Known
from vllm_megamoe.checkpoint.recognise import FormatOf
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.whole.on_rank import bits_of_format

ALIASES = {
    "msmodelslim-w8a8": "msmodelslim-w8a8-dynamic",
    "msmodelslim-w4a8": "msmodelslim-w4a8-dynamic",
    "msmodelslim-mxfp8": "msmodelslim-w8a8-mxfp8",
    "msmodelslim-w4a4": "msmodelslim-w4a4-mxfp4",
    "mxfp4": "modelopt-mxfp4",
    "nvfp4": "modelopt-nvfp4",
    "int8": "compressed-tensors-w8a8",
    "int4": "compressed-tensors-w4a16-group",
}
"""Short names of what is asked for most."""


def find_format(name: str) -> ExpertsFormat:
    """The format of that name, of the table or a short one.

    Raises:
        ConfigError: no such format, or one that this version cannot read.
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key not in FORMATS:
        names = [*ALIASES, *FORMATS]
        near = difflib.get_close_matches(name.lower(), names, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        common = ", ".join([*ALIASES, "mxfp8", "fp8-block", "bf16"])
        raise ConfigError(f"--as {name!r} is no format{meant} Usual ones: {common}; all of them: docs/checkpoints.md.")
    found = Known(key)
    if not found.facts.loads:
        raise ConfigError(f"--as {name}: {found.facts.label} cannot be read: {found.facts.unread}. Choose another one.")
    return found


def everything_in(form: ExpertsFormat) -> FormatOf:
    """All experts of a model in one format, shared ones as the tools store linear layers beside experts of it."""

    def format_of(prefix: str, experts: int = 0, gated: bool = True) -> ExpertsFormat:
        if experts or form == BF16 or linear_bits(form) < 16:
            return form if experts else _BESIDE.get(form.name, form)
        return BF16

    return format_of


_BESIDE: dict[str, ExpertsFormat] = {
    "msmodelslim-w4a8-dynamic": Known("msmodelslim-w8a8-dynamic"),
    "msmodelslim-w4a8-dynamic-group": Known("msmodelslim-w8a8-dynamic"),
    "msmodelslim-w4a8-mxfp": Known("msmodelslim-w8a8-mxfp8"),
    "msmodelslim-w4a4-mxfp4": Known("msmodelslim-w8a8-mxfp8"),
}
"""msModelSlim's recipes quantise linear layers beside 4-bit experts to 8 bits."""


def linear_bits(form: ExpertsFormat) -> float:
    """Bits of the linear layers beside experts in a format: its own from 8 on, 8 by msModelSlim, else 16."""
    beside = _BESIDE.get(form.name, form)
    bits = bits_of_format(beside)
    return bits if bits >= 8 else 16.0
