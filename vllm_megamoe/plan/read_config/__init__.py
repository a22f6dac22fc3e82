"""MoeFacts from config.json alone: what a model needs is known before a weight is read."""

from collections.abc import Mapping
from typing import Any

from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config.families import BY_ARCHITECTURE, WRAPPERS
from vllm_megamoe.plan.read_config.generic import generic
from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.read_config.reader import FormatOf, read_family
from vllm_megamoe.plan.registry import taught

# Where multimodal configs keep the language model; the last two are Qwen-Omni's and DeepSeek-VL2's.
_SECTIONS = ("text_config", "llm_config", "thinker_config", "language_config")


def read_layers(config: Mapping[str, Any], format_of: FormatOf | None = None) -> tuple[MoeFacts, ...]:
    """Facts of every MoE layer of a model, decoder layers in order and draft layers last.

    A model without routed experts gives (). An unknown architecture is read by the key names that most configs share.

    Args:
        config: config.json as a mapping.
        format_of: from vLLM's prefix of a layer's experts (or of its shared MLP) to a format's name; bf16 by default.

    Raises:
        ConfigError: for a key whose value is not what its name promises, or from a function taught from outside.
    """
    architecture = architecture_of(config)
    from_outside = taught(architecture)
    if from_outside is not None:
        return from_outside(config)
    section = text_section(config)
    keys = Keys(section)
    inner = WRAPPERS.get(architecture, architecture)
    family = BY_ARCHITECTURE.get(inner) or BY_ARCHITECTURE.get(_first(section)) or generic(keys)
    inside = "language_model." if section is not config else ""
    return read_family(family, keys, inside, format_of or _bf16)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class that config.json names, of the whole model; empty where it names none."""
    return _first(config) or _first(text_section(config))


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether a table row or a registered function reads this model, so that its layers' names are sure."""
    names = {architecture_of(config), _first(text_section(config))} - {""}
    return any(taught(name) or name in WRAPPERS or name in BY_ARCHITECTURE for name in names)


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model: a section of it, or all of it."""
    for name in _SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping):
            return text_section(section)
    return config


def _first(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list | tuple) and names else ""


def _bf16(name: str) -> str:
    return "bf16"
