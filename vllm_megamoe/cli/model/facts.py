"""From config files to the facts that the plan takes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_megamoe.checkpoint.recognise import format_facts, formats_of
from vllm_megamoe.checkpoint.recognise.facts import FormatFacts
from vllm_megamoe.cli.model.files import ModelFiles
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config import architecture_of, is_known, read_layers, text_section

# What vLLM makes of a config's dtype under `--dtype auto` (ModelConfig of vLLM 0.32): float32 becomes bfloat16.
_AUTO = {"float32": "bfloat16", "": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Model:
    """What config files say about a model.

    Attributes:
        name: what a command line would call it.
        architecture: class that config.json names, empty where it names none.
        num_layers: decoder layers, 0 where the config does not say.
        dtype: what `--dtype auto` means for it.
        layers: MoE layers, draft layers last; empty for a dense model.
        known: whether a table or a registered function reads this architecture, not common key names alone.
        only_quantisation: whether no config.json was given, only a file that describes a quantisation.
    """

    name: str
    architecture: str
    num_layers: int
    dtype: str
    layers: tuple[MoeFacts, ...]
    known: bool = True
    only_quantisation: bool = False

    @property
    def num_drafts(self) -> int:
        """Draft layers with experts."""
        return sum(layer.draft for layer in self.layers)

    def without_drafts(self) -> "Model":
        """The model as it is served without speculation."""
        return replace(self, layers=tuple(layer for layer in self.layers if not layer.draft))

    @property
    def formats(self) -> tuple[FormatFacts, ...]:
        """Formats of the routed experts, in the order of the layers."""
        return tuple(format_facts(name) for name in dict.fromkeys(layer.experts_format for layer in self.layers))


def read_facts(files: ModelFiles) -> Model:
    """Read a model's facts.

    Raises:
        ConfigError: for a value that is not what its key promises.
    """
    config = files.config
    if not config and files.side_files:
        return Model(files.name, "", 0, "bfloat16", (), only_quantisation=True)
    section = text_section(config)
    named = [part[key] for part in (section, config) for key in ("dtype", "torch_dtype") if part.get(key)]
    dtype = str(named[0]).removeprefix("torch.") if named else ""
    layers = read_layers(config, formats_of(config, files.side_files))
    for layer in layers:
        _check(layer)
    return Model(
        name=files.name,
        architecture=architecture_of(config),
        num_layers=_num_layers(section),
        dtype=_AUTO.get(dtype, dtype),
        layers=layers,
        known=is_known(config),
    )


def _check(layer: MoeFacts) -> None:
    """Sizes that no model has come from a config that says them by names which are not known here."""
    for name in ("hidden", "intermediate_hidden", "topk"):
        if getattr(layer, name) < 1:
            raise ConfigError(
                f"config.json: {name} of {layer.name} is {getattr(layer, name)}; wanted a size from 1. Correct the "
                "file, or teach the model with register_model_facts(architecture, fn)."
            )
    if layer.topk > layer.num_experts:
        raise ConfigError(
            f"config.json: {layer.topk} experts per token of {layer.num_experts} in {layer.name}; wanted no more than "
            "there are. Correct the file."
        )


def _num_layers(section: Mapping[str, Any]) -> int:
    """Decoder layers; some dense configs list a value for each block instead, and the number is for show only."""
    counts = [section.get(name) for name in ("num_hidden_layers", "num_layers", "n_layers")]
    return next((count for count in counts if isinstance(count, int)), 0)
