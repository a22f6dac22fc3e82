"""Find and read the config files of a checkpoint; no weight is touched.

From config files to the facts that the plan takes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_megamoe.checkpoint.formats import FormatFacts, format_facts
from vllm_megamoe.checkpoint.recognise import SIDE_FILES, formats_of
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.read_config.reader import architecture_of, is_known, read_layers, text_section

CONFIG = "config.json"
_SUFFIX = "_config.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The config files of one checkpoint.

    Attributes:
        name: what a command line would call the model.
        config: config.json; empty where only a file that describes a quantisation was given.
        side_files: files beside it that describe a quantisation, by their usual names.
    """

    name: str
    config: Mapping[str, Any]
    side_files: Mapping[str, Mapping[str, Any]]


def read_model(text: str) -> ModelFiles:
    """Read what MODEL names: a folder with config.json in it, or one config file.

    Beside a file called `X_config.json` the others may be called `X_hf_quant_config.json` and the like. A file that
    describes a quantisation may be given alone; it says nothing about experts.

    Raises:
        ConfigError: no such file, a name of a hub, not JSON, or JSON that is no object.
    """
    path = find_path(text)
    if path is not None and path.is_dir():
        return _read_folder(text, path)
    if path is None or not path.is_file():
        raise ConfigError(_missing(text, Path(text)))
    for side in SIDE_FILES:
        if path.name == side or path.name.endswith(f"_{side}"):
            return ModelFiles(_name_of(path, side), {}, {side: _read(path)})
    config = _read(path)
    return ModelFiles(_name_of(path, CONFIG), config, _beside(path))


def find_path(text: str) -> Path | None:
    """What a text names, None where nothing of that name exists.

    Raises:
        ConfigError: it cannot be looked up: a name too long, a folder that may not be read, an unknown user.
    """
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{text}: cannot be looked up ({error}); expected a checkpoint's folder or file.") from error


def _read_folder(text: str, folder: Path) -> ModelFiles:
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"{folder}: no {CONFIG} in this folder; expected a checkpoint's folder or one config file.")
    found = {side: _read(folder / side) for side in SIDE_FILES if (folder / side).is_file()}
    return ModelFiles(text, _read(folder / CONFIG), found)


def _beside(config: Path) -> dict[str, Mapping[str, Any]]:
    stem = config.name.removesuffix(_SUFFIX)
    found: dict[str, Mapping[str, Any]] = {}
    for side in SIDE_FILES:
        places = [config.with_name(side)]
        if config.name.endswith(_SUFFIX):
            places.insert(0, config.with_name(f"{stem}_{side}"))
        place = next((each for each in places if each.is_file()), None)
        if place is not None:
            found[side] = _read(place)
    return found


def _name_of(path: Path, usual: str) -> str:
    """`folder` for `folder/config.json`, `org/model` for `org--model_config.json`, else the file's name."""
    if path.name == usual:
        return str(path.parent)
    return path.name.removesuffix(f"_{usual}").removesuffix(".json").replace("--", "/", 1)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets without end
        raise ConfigError(f"{path}: not JSON ({error}); expected a checkpoint's config file.") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: JSON of type {type(content).__name__}; expected an object with the model's config.")
    return content


def _missing(text: str, path: Path) -> str:
    if _HUB_ID.fullmatch(text) and not path.parent.exists():
        name = text.split("/")[1]
        return (
            f"{text}: no such folder. If it is a model of a hub, download its config first: "
            f"`hf download {text} {CONFIG} --local-dir {name}`, then give the folder {name} (and its "
            f"{' or '.join(SIDE_FILES[::2])}, if it has one)."
        )
    return f"{text}: no such file or folder; expected a checkpoint's folder or its {CONFIG}."


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
                f"config.json: {name} of {layer.name} is {getattr(layer, name)}; expected a size from 1. Correct the "
                "file, or teach the model with register_model_facts(architecture, fn)."
            )
    if layer.topk > layer.num_experts:
        raise ConfigError(
            f"config.json: {layer.topk} experts per token of {layer.num_experts} in {layer.name}; expected no more "
            "than there are. Correct the file."
        )


def _num_layers(section: Mapping[str, Any]) -> int:
    """Decoder layers; some dense configs list a value for each block instead, and the number is for show only."""
    counts = [section.get(name) for name in ("num_hidden_layers", "num_layers", "n_layers")]
    return next((count for count in counts if isinstance(count, int)), 0)
