"""NVIDIA ModelOpt: one algorithm for all, or a list of layers with an algorithm each (MIXED_PRECISION)."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise.facts import BF16
from vllm_megamoe.checkpoint.recognise.lists import Patterns, listed
from vllm_megamoe.checkpoint.recognise.names import Names


def reader(section: Mapping[str, Any]) -> Callable[[Names], str]:
    """The format of one projection.

    Args:
        section: the quantization_config, or hf_quant_config.json with its `quantization` section.
    """
    section = section.get("quantization") or section
    algorithm = str(section.get("quant_algo") or "")
    if algorithm == "MIXED_PRECISION":
        return layers(section)
    left_out = Patterns(listed(section, "exclude_modules", "ignore"), inside=True)
    return lambda names: BF16 if not algorithm or left_out.match(names) else _named(algorithm)


def layers(section: Mapping[str, Any]) -> Callable[[Names], str]:
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
