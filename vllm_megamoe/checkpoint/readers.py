"""NVIDIA ModelOpt: one algorithm for all, or a list of layers with an algorithm each (MIXED_PRECISION).

transformers' fp8 in blocks, DeepSeek-V4's variant of it, and MXFP8 under its own name.

Weight-only integers: GPTQ, AWQ, and AutoRound, which also writes other kinds under the same keys.

msModelSlim: a flat file that gives the type of every tensor; what it does not list is FLOAT.

AMD Quark: a global scheme, schemes per layer by pattern, and a list of names left out.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.formats import BF16
from vllm_megamoe.checkpoint.names import Names, Patterns, listed


def modelopt_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection.

    Args:
        section: the quantization_config, or hf_quant_config.json with its `quantization` section.
    """
    section = section.get("quantization") or section
    algorithm = str(section.get("quant_algo") or "")
    if algorithm == "MIXED_PRECISION":
        return modelopt_layers(section)
    left_out = Patterns(listed(section, "exclude_modules", "ignore"), inside=True)
    return lambda names: BF16 if not algorithm or left_out.match(names) else _named(algorithm)


def modelopt_layers(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection by `quantized_layers`, whose keys are projections or whole modules of experts."""
    table = section.get("quantized_layers") or {}
    if isinstance(table, str):
        table = json.loads(table)

    def read(names: Names) -> str:
        for name in names:
            parts = name.split(".")
            for end in range(len(parts), 0, -1):
                entry = table.get(".".join(parts[:end]))
                if entry:
                    return _named(str(entry.get("quant_algo") or ""))
        return BF16

    return read


def _named(algorithm: str) -> str:
    return "modelopt-" + algorithm.lower().replace("_", "-") if algorithm else BF16


LEFT_OUT = ("modules_to_not_convert", "ignored_layers", "exclude", "ignore")


def fp8_reader(section: Mapping[str, Any], expert_dtype: str = "") -> Callable[[Names], str]:
    """The format of one projection.

    Args:
        section: the quantization_config.
        expert_dtype: config.json's key of that name: DeepSeek-V4 keeps routed experts in `fp4` beside fp8 linears.
    """
    by_blocks = "fp8-block-ue8m0" if section.get("scale_fmt") == "ue8m0" else "fp8-block"
    plain = by_blocks if section.get("weight_block_size") else "fp8"
    # ModelOpt re-quantised the routed experts of some of these files and says so beside the original keys.
    over = modelopt_layers(section) if section.get("moe_quant_algo") else None
    left_out = Patterns([] if over else listed(section, *LEFT_OUT), inside=True)

    def read(names: Names) -> str:
        if over and (found := over(names)) != BF16:
            return found
        if left_out.match(names):
            return BF16
        return "deepseek-v4-fp4" if expert_dtype == "fp4" and any(".experts." in name for name in names) else plain

    return read


def mxfp8_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """MiniMax-M3: e4m3 codes with e8m0 scales, named like fp8's."""
    left_out = Patterns(listed(section, *LEFT_OUT), inside=True)
    return lambda names: BF16 if left_out.match(names) else "mxfp8"


def mxfp4_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """gpt-oss: blocks of FP4 for all experts of a layer in one tensor."""
    left_out = Patterns(listed(section, *LEFT_OUT), inside=True)
    return lambda names: BF16 if left_out.match(names) else "gpt-oss-mxfp4"


# AutoRound's `data_type` by bits, where it is no integer.
_FLOATS = {("mx_fp", 4): "mxfp4", ("mx_fp", 8): "mxfp8", ("nv_fp", 4): "nvfp4", ("fp", 8): "fp8"}
_UNQUANTISED_BITS = 16


def gptq_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """GPTQ: `dynamic` holds regular expressions, `-:` before those that are left out."""
    rules = section.get("dynamic") or {}
    left_out = [re.compile(rule[2:]) for rule in rules if rule.startswith("-:")]
    kept = Patterns(listed(section, "modules_to_not_convert"), inside=True)
    form = _integer("gptq", section)

    def read(names: Names) -> str:
        out = kept.match(names) or any(rule.match(name) for rule in left_out for name in names)
        return BF16 if out else form

    return read


def awq_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """AWQ: a list of modules left out. Its zero points make even a scale per channel no plain int4."""
    kept = Patterns(listed(section, "modules_to_not_convert"), inside=True)
    form = "awq-int4-group" if int(section.get("group_size", section.get("q_group_size", 128))) > 0 else "awq-int4"
    return lambda names: BF16 if kept.match(names) else form


def auto_round_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """AutoRound: `extra_config` says per module where the bits differ; 16 bits mean left as it was."""
    extra = section.get("extra_config") or {}

    def read(names: Names) -> str:
        own: Mapping[str, Any] = next(
            (value for key, value in extra.items() if Patterns([_as_regex(key)], True).match(names)), {}
        )
        merged = {**section, **own}
        return BF16 if int(merged.get("bits", 4)) >= _UNQUANTISED_BITS else _auto_round(merged)

    return read


def _auto_round(section: Mapping[str, Any]) -> str:
    kind, bits = str(section.get("data_type", "int")), int(section.get("bits", 4))
    for (prefix, width), name in _FLOATS.items():
        if kind.startswith(prefix) and bits == width:
            return f"auto-round-{name}"
    return _integer("auto-round", section)


def _integer(tool: str, section: Mapping[str, Any]) -> str:
    exact = int(section.get("group_size", -1)) <= 0 and section.get("sym", True) is not False
    return f"{tool}-int{section.get('bits', 4)}" + ("" if exact else "-group")


def _as_regex(key: str) -> str:
    """AutoRound's keys are names or regular expressions."""
    return f"re:{key}" if any(sign in key for sign in "*\\[(|") else key


def msmodelslim_reader(description: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection."""
    # The file's version tells how int4 codes are packed; without it, or with another, one code fills a byte.
    old = str(description.get("version", "")) != "1.0.0"

    def read(names: Names) -> str:
        name = next((name for name in names if f"{name}.weight" in description), None)
        kind = "FLOAT" if name is None else str(description[f"{name}.weight"])
        if kind == "FLOAT":
            return BF16
        form = "msmodelslim-" + kind.lower().replace("_", "-")
        if kind == "W4A8_DYNAMIC":
            form += "-old" if old else ""
            form += "-group" if f"{name}.weight_scale_second" in description else ""
        return form

    return read


def quark_reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
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
