"""AMD Quark: a global scheme, schemes per layer by pattern, and a list of names left out."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise.facts import BF16
from vllm_megamoe.checkpoint.recognise.lists import Patterns, listed
from vllm_megamoe.checkpoint.recognise.names import Names


def reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection: the layer's own scheme, else the global one."""
    left_out = Patterns(listed(section, "exclude"), inside=True)
    own = [
        (Patterns([glob], inside=True), scheme) for glob, scheme in (section.get("layer_quant_config") or {}).items()
    ]
    everywhere = section.get("global_quant_config") or {}

    def read(names: Names) -> str:
        if left_out.match(names):
            return BF16
        return _scheme(next((scheme for pattern, scheme in own if pattern.match(names)), everywhere))

    return read


def _scheme(scheme: Mapping[str, Any]) -> str:
    weight = scheme.get("weight")
    if isinstance(weight, list):
        weight = weight[0]
    if not weight:
        return BF16
    dtype, grouped = str(weight.get("dtype")), weight.get("qscheme") == "per_group"
    if dtype == "fp4" and grouped:
        return "quark-mxfp4"
    if dtype.startswith("fp8") and not grouped:
        return "quark-fp8"
    return "quark-int8" if dtype == "int8" and not grouped else f"quark {dtype} {weight.get('qscheme')}"
