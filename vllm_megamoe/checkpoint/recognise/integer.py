"""Weight-only integers: GPTQ, AWQ, and AutoRound, which also writes other kinds under the same keys."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise.facts import BF16
from vllm_megamoe.checkpoint.recognise.lists import Patterns, listed
from vllm_megamoe.checkpoint.recognise.names import Names

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
