"""The formats in which a tiny checkpoint can be written: scheme of the experts, and what the tool says of the rest."""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_megamoe.testing.formats import floats, gptq_awq, integers, sections
from vllm_megamoe.testing.formats.scheme import Scheme

Section = Callable[[Sequence[str]], dict[str, Any]]
"""Names of the linears that stay BF16 -> quantization_config."""


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        scheme: of the routed experts, None for the BF16 of the model itself.
        section: makes quantization_config; None for msModelSlim, which describes every tensor in a file of its own.
    """

    scheme: Scheme | None
    section: Section | None = None


def _with(section: dict[str, Any], key: str) -> Section:
    """The section with the names in a list of its own."""

    def make(names: Sequence[str]) -> dict[str, Any]:
        return copy.deepcopy(section) | {key: list(names)}

    return make


def _gptq(section: dict[str, Any]) -> Section:
    def make(names: Sequence[str]) -> dict[str, Any]:
        return copy.deepcopy(section) | {"dynamic": {f"-:^{re.escape(name)}$": {} for name in names}}

    return make


def _auto_round(section: dict[str, Any]) -> Section:
    def make(names: Sequence[str]) -> dict[str, Any]:
        return copy.deepcopy(section) | {"extra_config": {name: {"bits": 16, "data_type": "float"} for name in names}}

    return make


FORMATS: dict[str, Format] = {
    "bf16": Format(None),
    "msmodelslim-w8a8": Format(integers.W8A8_DYNAMIC),
    "msmodelslim-w4a8": Format(integers.W4A8_DYNAMIC),
    "msmodelslim-w8a8-mxfp8": Format(floats.MS_MXFP8),
    "msmodelslim-w4a8-mxfp": Format(floats.MS_W4A8_MXFP),
    "msmodelslim-w4a4-mxfp4": Format(floats.MS_W4A4_MXFP4),
    "compressed-tensors-w8a8": Format(integers.CT_W8A8, _with(sections.CT_W8A8, "ignore")),
    "compressed-tensors-w4a8": Format(integers.CT_W4A8, _with(sections.CT_W4A8, "ignore")),
    "compressed-tensors-w4a16": Format(integers.CT_W4A16, _with(sections.CT_W4A16, "ignore")),
    "compressed-tensors-w4a16-group": Format(integers.CT_W4A16_GROUP, _with(sections.CT_W4A16_GROUP, "ignore")),
    "compressed-tensors-fp8": Format(floats.CT_FP8, _with(sections.CT_FP8, "ignore")),
    "compressed-tensors-mxfp8": Format(floats.CT_MXFP8, _with(sections.CT_MXFP8, "ignore")),
    "compressed-tensors-mxfp4": Format(floats.CT_MXFP4, _with(sections.CT_MXFP4, "ignore")),
    "compressed-tensors-nvfp4": Format(floats.CT_NVFP4, _with(sections.CT_NVFP4, "ignore")),
    "fp8-block": Format(floats.BLOCK, _with(sections.fp8(), "modules_to_not_convert")),
    "fp8-block-ue8m0": Format(floats.BLOCK_UE8M0, _with(sections.fp8(scale_fmt="ue8m0"), "modules_to_not_convert")),
    "modelopt-mxfp8": Format(floats.MO_MXFP8, _with(sections.modelopt("MXFP8"), "ignore")),
    "modelopt-nvfp4": Format(floats.MO_NVFP4, _with(sections.modelopt("NVFP4"), "ignore")),
    "quark-int8": Format(integers.QUARK_INT8, _with(sections.quark("int8", "per_channel"), "exclude")),
    "quark-mxfp4": Format(floats.QUARK_MXFP4, _with(sections.QUARK_MXFP4, "exclude")),
    "gptq-int4-group": Format(gptq_awq.GPTQ_GROUP, _gptq(sections.gptq())),
    "awq-int4-group": Format(gptq_awq.AWQ_GROUP, _with(sections.awq(), "modules_to_not_convert")),
    "auto-round-int4-group": Format(
        gptq_awq.AR_GPTQ, _auto_round(sections.auto_round(4, 32, "int", "auto_round:auto_gptq"))
    ),
}
"""Every format by the name under which `megamoe_checkpoint` takes it."""
