"""One reading of a model, for the server and the command line alike: from config files to the facts of the plan.

What differs between both callers ends here: each hands over the config as a mapping (config.json with what the command
line changes, or vLLM's `hf_config.to_dict()`), the side files, and what speculation loads.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_megamoe.checkpoint.formats import BF16, ExpertsFormat
from vllm_megamoe.checkpoint.recognise import (
    SECTION_KEYS,
    FormatOf,
    SideFiles,
    formats_of,
    section_of,
    surely_quantised,
    unlisted,
)
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config.defaults import TABLE, installed_defaults, renamed_keys, with_defaults
from vllm_megamoe.plan.read_config.reader import architecture_of, is_known, num_layers_of, read_layers
from vllm_megamoe.plan.screen import number_runs

OWN_LAYERS = ("mtp", "dspark")
"""Methods that load layers of the target's checkpoint where no draft model is named (SpeculativeConfig, vLLM 0.32)."""

TARGETS_QUANTISATION = ("mtp", "eagle")
"""Methods whose draft model is built with the target's quantisation (the model files of vLLM 0.32 that read
`vllm_config.quant_config`: deepseek_mtp, deepseek_eagle and their kin); all others use the draft's own."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model with config files of its own.

    Attributes:
        name: what the user called it.
        config: its config.json.
        side_files: files beside it that describe a quantisation, by their usual names.
        quantization: what speculation says of it, empty for nothing.
    """

    name: str
    config: Mapping[str, Any]
    side_files: SideFiles
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculative decoding loads.

    Attributes:
        method: vLLM's word (`mtp`, `ngram`, `eagle3`, `draft_model` ...).
        draft: the draft model, None where the method loads none or takes the target's own layers.
    """

    method: str
    draft: DraftModel | None = None

    @property
    def loads_own_layers(self) -> bool:
        """Whether the draft (MTP) layers of the target's checkpoint are loaded."""
        return self.draft is None and self.method in OWN_LAYERS


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What config files say about a model as it is served.

    Attributes:
        architecture: class that the config names, empty where it names none.
        num_layers: decoder layers, 0 where the config does not say.
        layers: MoE layers that are loaded, draft layers last; empty where none is known.
        known: whether a table or a registered function reads this architecture, not common key names alone.
        drafts_left_out: draft layers of the checkpoint that nobody loads.
        notes: sentences about what is worth knowing and violates nothing.
        warnings: sentences about what was taken for granted, which a server says louder.
    """

    architecture: str
    num_layers: int
    layers: tuple[MoeFacts, ...]
    known: bool
    drafts_left_out: int = 0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_model(
    config: Mapping[str, Any],
    side_files: SideFiles,
    *,
    speculative: Speculation | None = None,
    formats: FormatOf | None = None,
) -> ModelFacts:
    """Read a model's facts.

    Args:
        config: config.json as a mapping, or `hf_config.to_dict()`.
        side_files: parsed files of the checkpoint beside config.json, by name (see checkpoint.recognise.SIDE_FILES).
        speculative: what speculation loads; None without it.
        formats: of the experts, in place of what the files say.

    Raises:
        ConfigError: for a value that is not what its key promises.
    """
    known = is_known(config)
    whole, source = _with_defaults(config)
    layers = read_layers(whole, formats or _formats(whole, side_files, known))
    own = speculative is not None and speculative.loads_own_layers
    served = tuple(layer for layer in layers if own or not layer.draft)
    warnings = tuple(_unlisted(whole, side_files, served)) if known and formats is None else ()
    notes = [*_about_names(config, bool(layers), known), *_about_defaults(config, whole, source, layers)]
    if speculative is not None and speculative.draft is not None:
        drafts, more = _draft_model(speculative, speculative.draft)
        served += drafts
        notes += more
    for layer in served:
        _check(layer)
    return ModelFacts(
        architecture=architecture_of(config),
        num_layers=num_layers_of(whole),
        layers=served,
        known=known,
        drafts_left_out=sum(layer.draft for layer in layers) if not own else 0,
        notes=tuple(notes),
        warnings=warnings,
    )


def _unlisted(config: Mapping[str, Any], side_files: SideFiles, layers: Iterable[MoeFacts]) -> Iterator[str]:
    """Layers whose experts a description of every tensor leaves out, told once for a prefix.

    What msModelSlim does not list it has not quantised (often MTP layers).
    """
    absent: dict[str, list[MoeFacts]] = {}
    for layer in layers:
        if layer.experts_format == BF16 and unlisted(config, side_files, layer.name):
            absent.setdefault(re.sub(r"(layers|blocks)\.\d+\.", r"\1.N.", layer.name), []).append(layer)
    for prefix, some in absent.items():
        numbers = number_runs(layer.index for layer in some)
        where = f"{prefix} (N = {numbers})" if numbers else ", ".join(layer.name for layer in some)
        yield f"The quantisation's description does not list the experts of {where}: they are read as BF16."


def _with_defaults(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The config with the defaults of its class, and where these come from."""
    whole = with_defaults(config)
    if whole is config and not is_known(config) and not read_layers(config):
        # The import takes seconds: only where nothing else answers.
        installed = installed_defaults(config)
        if installed is not None:
            return installed, "the config class of the installed transformers"
    return whole, TABLE


def _about_defaults(
    config: Mapping[str, Any], whole: Mapping[str, Any], source: str, layers: tuple[MoeFacts, ...]
) -> list[str]:
    """Which keys were left out and decide something, by reading the config without each of their defaults."""
    if whole == config or not layers:
        return []
    expected = _shape(whole)
    taken = [name for name, without in _each_left_out(config, whole) if _shape(without) != expected]
    if not taken:
        return []
    return [f"config.json leaves out {', '.join(taken)}: taken from {source}."]


def _each_left_out(
    config: Mapping[str, Any], whole: Mapping[str, Any], inside: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    renamed = renamed_keys(config)
    for key, value in whole.items():
        below = config.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            for name, without in _each_left_out(below, value, f"{inside}{key}."):
                yield name, {**whole, key: without}
        elif key not in config and key not in renamed:
            yield f"{inside}{key} ({value})", {k: v for k, v in whole.items() if k != key}


def _shape(config: Mapping[str, Any]) -> object:
    """The facts, or the error that reading them ends in."""
    try:
        return tuple(layer for layer in read_layers(config) if not layer.draft)
    except ConfigError as error:
        return str(error)


def _about_names(config: Mapping[str, Any], found: bool, known: bool) -> list[str]:
    """For an architecture outside the tables: what was read by common names, or which names were not."""
    architecture = architecture_of(config) or "This architecture"
    if known:
        return []
    if found:
        read = f"{architecture} stands in no table: its config was read by the names that most configs share."
        return [f"{read} Compare the sizes with the model's code, or teach it with register_model_facts."]
    hints = sorted(_names_like_experts(config))
    said = f"; its config has {', '.join(hints)}" if hints else ""
    none = f"No experts under names known here: {architecture} stands in no table{said}."
    return [f"{none} If it has experts, teach it with register_model_facts(architecture, fn)."]


def _names_like_experts(config: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Keys that speak of experts and say anything."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            if key not in SECTION_KEYS:
                yield from _names_like_experts(value, f"{inside}{key}.")
        # A number may be a key in vLLM's view of a config (id2label).
        elif value and ("expert" in (word := str(key).lower()) or "moe" in word.split("_")):
            yield f"{inside}{key}"


def _draft_model(speculative: Speculation, draft: DraftModel) -> tuple[tuple[MoeFacts, ...], list[str]]:
    """MoE layers of a draft model that run through the operator, and what to say of those that do not."""
    config = with_defaults(draft.config)
    layers = read_layers(config, _formats(config, draft.side_files, is_known(config)))
    # An MTP checkpoint repeats the target's config: what it holds is the draft layers.
    loaded = [layer for layer in layers if layer.draft or speculative.method != "mtp"]
    if speculative.method in TARGETS_QUANTISATION or draft.quantization == "megamoe":
        return tuple(replace(layer, draft=True) for layer in loaded), []
    if not loaded:
        return (), []
    note = (
        f"The draft model {draft.name} has {len(loaded)} layer(s) with experts; vLLM builds them with the draft's own "
        "quantisation, so they run on vLLM's path and are not part of this plan."
    )
    return (), [note]


def _formats(config: Mapping[str, Any], side_files: SideFiles, known: bool) -> FormatOf:
    """The formats by name where the names are sure; else only what no naming style leaves out counts as quantised."""
    if known:
        return formats_of(config, side_files)
    sure = surely_quantised(section_of(config), num_layers_of(config), side_files)

    def format_of(prefix: str, experts: int = 0, gated: bool = True) -> ExpertsFormat:
        return sure or BF16

    return format_of


def _check(layer: MoeFacts) -> None:
    """Sizes that no model has come from a config that says them by names which are not known here."""
    for name in ("hidden", "intermediate_hidden", "topk"):
        if getattr(layer, name) < 1:
            raise ConfigError(
                f"config.json: {name} of {layer.name} is {getattr(layer, name)}; expected a size from 1. Correct the "
                "file, or teach the model with register_model_facts(architecture, fn)."
            )
    if layer.topk > layer.num_experts:
        raise ConfigError(
            f"config.json: {layer.topk} experts per token of {layer.num_experts} in {layer.name}; expected no more "
            "than there are. Correct the file."
        )
