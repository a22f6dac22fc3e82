"""From one config and the rules of its family to the facts of its MoE layers: which there are, and what each is."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat
from vllm_megamoe.checkpoint.recognise import FormatOf
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts, SharedFacts
from vllm_megamoe.plan.read_config.architectures import family_of
from vllm_megamoe.plan.read_config.family import NUM_LAYERS, Family, SharedRule, generic
from vllm_megamoe.plan.read_config.keys import Keys
from vllm_megamoe.plan.read_config.where import MOE_KINDS, hybrid_kinds
from vllm_megamoe.plan.registry import taught

MOST_LAYERS = 10_000
"""No model has more by far; a config with a typing error must not keep the reader busy for days."""

MOST_EXPERTS = 100_000
"""As MOST_LAYERS; every expert of a layer may have to be asked for its format."""


def read_family(family: Family, keys: Keys, inside: str, format_of: FormatOf) -> tuple[MoeFacts, ...]:
    """Facts of every MoE layer, draft layers last; none when the config names no routed experts.

    Args:
        family: the rules.
        keys: the section that describes the language model.
        inside: what vLLM puts before the family's own prefixes, `language_model.` or nothing.
        format_of: the checkpoint's formats.
    """
    values = {**_section(family, keys), **keys.values}
    keys = Keys(values, _num_layers(family, Keys(values)))
    experts, topk = keys.integer(*family.num_experts), keys.integer(*family.topk)
    says_topk = any(keys.values.get(name) is not None for name in family.topk)
    if experts < 0 or (experts > 1 and says_topk and topk == 0):
        raise ConfigError(
            f"config.json: {experts} experts in a layer, {topk} of them per token; expected numbers from 1 on, or "
            "neither in a model without experts. Correct the file."
        )
    if experts < 2 or not topk:
        return ()
    if experts > MOST_EXPERTS:
        raise ConfigError(
            f"config.json: {experts} experts in a layer; expected at most {MOST_EXPERTS}. Correct the file."
        )
    decoder = [_layer(family, keys, i, inside + family.name.format(layer=i), format_of) for i in _decoder(family, keys)]
    drafts = [
        _layer(family, keys, number, name, format_of, draft=True) for number, name in _drafts(family, keys, inside)
    ]
    return (*decoder, *drafts)


def _section(family: Family, keys: Keys) -> Mapping[str, Any]:
    """What the family's section says of experts, to be read as if it stood beside everything else."""
    section = keys.values.get(family.section) if family.section else {}
    if not isinstance(section or {}, Mapping):
        raise ConfigError(
            f"config.json: {family.section} = {section!r}; expected an object with the sizes of the experts. Correct "
            "the file."
        )
    shared = family.shared or SharedRule()
    names = {*family.num_experts, *family.topk, *family.intermediate, *shared.count, *shared.width}
    return {name: value for name, value in (section or {}).items() if name in names}


def _decoder(family: Family, keys: Keys) -> list[int]:
    return [number for number in range(_num_layers(family, keys)) if family.where(keys, number)]


def _num_layers(family: Family, keys: Keys) -> int:
    return _counted(keys.integer(*family.num_layers) or len(hybrid_kinds(keys)), "decoder layers")


def _counted(layers: int, kind: str) -> int:
    if not 0 <= layers <= MOST_LAYERS:
        raise ConfigError(
            f"config.json: {layers} {kind}; expected at most {MOST_LAYERS} and not fewer than 0. Correct the file."
        )
    return layers


def _drafts(family: Family, keys: Keys, inside: str) -> Iterator[tuple[int, str]]:
    """The number that per-layer lists know a draft layer by, and its name."""
    rule = family.drafts
    if rule is None:
        return
    count = keys.integer(*rule.count, default=rule.default)
    kinds = list(keys.items("mtp_layers_block_type")) or list(keys.text("mtp_hybrid_override_pattern"))
    start = _num_layers(family, keys)
    for place in range(_counted(count * max(len(kinds), 1), "draft layers")):
        number = start + place
        if kinds[place % len(kinds)] in MOE_KINDS if kinds else family.where(keys, number):
            pattern = rule.name or inside + family.name
            yield number, pattern.format(layer=number if rule.after_decoder else place)


def _layer(family: Family, keys: Keys, number: int, name: str, format_of: FormatOf, draft: bool = False) -> MoeFacts:
    model_hidden = keys.integer("hidden_size", "d_model")
    factor = keys.number(*family.scaling, default=family.default_scaling)
    if math.isinf(factor):
        raise ConfigError(
            f"config.json: the routed scaling factor is {factor}; expected a finite one. Correct the file."
        )
    experts, activation = keys.integer(*family.num_experts), family.activation(keys, number)
    # Experts without a gate multiply up and down alone (vLLM's `..._no_mul`).
    gated = not activation.name.endswith("_no_mul")
    return MoeFacts(
        name=name,
        index=number_in(name),
        num_experts=experts,
        topk=keys.integer(*family.topk),
        hidden=keys.integer(*family.latent, default=model_hidden),
        intermediate_hidden=keys.integer(*family.intermediate),
        activation=activation,
        gate_up_interleaved=family.gate_up_interleaved,
        has_bias=family.has_bias,
        router_weight_on_input=family.router_weight_on_input,
        experts_format=format_of(name, experts, gated),
        shared=_shared(family, keys, number, name, format_of, gated),
        routed_scaling_factor=factor,
        scale_on_output=family.scale_on_output and factor != 1.0,
        model_hidden=model_hidden,
        draft=draft,
        splits_rows=family.splits_rows,
    )


def _shared(family: Family, keys: Keys, number: int, name: str, format_of: FormatOf, gated: bool) -> SharedFacts | None:
    rule = family.shared
    if rule is None:
        return None
    count = keys.integer(*rule.count) if rule.count else 1
    routed = 0 if not rule.count else keys.integer(*family.intermediate)
    width = count * keys.integer(*rule.width, default=routed)
    if not width:
        return None
    if width < 0:
        raise ConfigError(
            f"config.json: the shared experts of {name} are {width} wide; expected 0 for none, or a width. Correct the "
            "file, or teach the model with register_model_facts(architecture, fn)."
        )
    return SharedFacts(
        intermediate_hidden=width,
        hidden=keys.integer("hidden_size", "d_model"),
        activation=(rule.activation or family.activation)(keys, number),
        gated=rule.gated,
        experts_format=format_of(f"{name.rpartition('.')[0]}.{rule.module}", gated=gated),
    )


def number_in(name: str) -> int:
    """The layer's number within its prefix, -1 where there is none."""
    found = re.search(r"(?:^|\.)(?:layers|blocks)\.(\d+)\.", name)
    return int(found[1]) if found else -1


# Where multimodal configs keep the language model; the last two are Qwen-Omni's and DeepSeek-VL2's.
_SECTIONS = ("text_config", "llm_config", "thinker_config", "language_config")


def read_layers(config: Mapping[str, Any], format_of: FormatOf | None = None) -> tuple[MoeFacts, ...]:
    """Facts of every MoE layer of a model, decoder layers in order and draft layers last.

    A model without routed experts gives (). An unknown architecture is read by the key names that most configs share.

    Args:
        config: config.json as a mapping.
        format_of: the checkpoint's formats; BF16 by default.

    Raises:
        ConfigError: for a key whose value is not what its name promises, or from a function taught from outside.
    """
    architecture = architecture_of(config)
    from_outside = taught(architecture)
    if from_outside is not None:
        return from_outside(config)
    section = text_section(config)
    keys = Keys(section)
    family = family_of(architecture, _first(section)) or generic(keys)
    inside = "language_model." if section is not config else ""
    return read_family(family, keys, inside, format_of or _bf16)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class that config.json names, of the whole model; empty where it names none."""
    return _first(config) or _first(text_section(config))


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether a table row or a registered function reads this model, so that its layers' names are sure."""
    names = {architecture_of(config), _first(text_section(config))} - {""}
    return family_of(*names) is not None or any(taught(name) is not None for name in names)


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model: a section of it, or all of it."""
    for name in _SECTIONS:
        section = config.get(name)
        if isinstance(section, Mapping):
            return text_section(section)
    return config


def num_layers_of(config: Mapping[str, Any]) -> int:
    """Decoder layers, 0 where the config does not say; some configs list a value for each block instead."""
    section = text_section(config)
    counts = [section.get(name) for name in NUM_LAYERS]
    return next((count for count in counts if isinstance(count, int)), 0)


def _first(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if names is None:
        return ""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"config.json: architectures = {names!r}; expected a list with the name of a model class. Correct the "
            "file, or fetch it again."
        )
    return names[0] if names else ""


def _bf16(prefix: str, experts: int = 0, gated: bool = True) -> ExpertsFormat:
    return BF16
