"""Find and read the config files of a checkpoint, and what they say; no weight is touched."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_megamoe.checkpoint.formats import ExpertsFormat, FormatFacts
from vllm_megamoe.checkpoint.recognise import MODELOPT_FILE, SECTION_KEYS, SIDE_FILES
from vllm_megamoe.cli.serve_line.engine import override, read_speculation, speculation_settings
from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts
from vllm_megamoe.plan.model import DraftModel, ModelFacts, Speculation, read_model
from vllm_megamoe.plan.read_config.reader import text_section
from vllm_megamoe.plan.stored_as import everything_in

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


def read_files(text: str) -> ModelFiles:
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


def as_served(files: ModelFiles, line: ServeLine | None) -> tuple[ModelFiles, list[str]]:
    """The files with `--hf-config-path` and `--hf-overrides` of a line, and sentences about what is not read.

    Raises:
        ConfigError: overrides that are no object.
    """
    if line is None:
        return files, []
    place, notes = line.value("hf-config-path"), []
    if place is not None and find_path(place) is None:
        notes.append(
            f"--hf-config-path {place} is not read: no such folder here. This plan is for {files.name}'s config."
        )
    elif place is not None:
        other = read_files(place)
        # The description of a quantisation stays that of the weights, but for ModelOpt's, which vLLM reads there.
        modelopt = {name: other.side_files[name] for name in (MODELOPT_FILE,) if name in other.side_files}
        files = replace(files, config=other.config, side_files={**files.side_files, **modelopt})
    changes = line.json("hf-overrides")
    return (replace(files, config=override(files.config, changes)) if changes else files), notes


def speculation_of(line: ServeLine | None) -> tuple[Speculation | None, list[str]]:
    """What a line's speculation loads, and sentences about a draft model that is not here."""
    settings = None if line is None else speculation_settings(line)
    if settings is None:
        return None, []

    def find(name: str) -> DraftModel | None:
        if find_path(name) is None:
            return None
        files = read_files(name)
        return DraftModel(name, files.config, files.side_files, str(settings.get("quantization") or ""))

    found = read_speculation(settings, find)
    if found.draft is not None and not found.draft.config:
        return found, [f"The draft model {found.draft.name} is not read: no such folder here. It is not in this plan."]
    return found, []


def without_quantisation(files: ModelFiles) -> ModelFiles:
    """The files of the model as it was before a tool quantised it."""
    config = {key: value for key, value in files.config.items() if key not in (*SECTION_KEYS, "expert_dtype")}
    inside = {key: value for key, value in config.items() if key.endswith("_config") and isinstance(value, Mapping)}
    for key, value in inside.items():
        config[key] = {name: each for name, each in value.items() if name not in SECTION_KEYS}
    return replace(files, config=config, side_files={})


def find_path(text: str) -> Path | None:
    """What a text names, None where nothing of that name exists.

    Raises:
        ConfigError: it is empty, or cannot be looked up: a name too long, a folder that may not be read, an unknown
            user.
    """
    if not text:  # as Path this is the working directory, and no shell's unset variable means that
        raise ConfigError("'' is given where a checkpoint's folder or file is expected. Is a shell's variable unset?")
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
    """A model as it would be served.

    Attributes:
        name: what a command line would call it.
        facts: what its config files say.
        dtype: what `--dtype auto` means for it.
        only_quantisation: whether no config.json was given, only a file that describes a quantisation.
    """

    name: str
    facts: ModelFacts
    dtype: str = "bfloat16"
    only_quantisation: bool = False

    @property
    def layers(self) -> tuple[MoeFacts, ...]:
        """Layers with experts, draft layers last."""
        return self.facts.layers

    @property
    def formats(self) -> tuple[FormatFacts, ...]:
        """Formats of the routed experts, in the order of the layers."""
        return tuple(form.facts for form in dict.fromkeys(layer.experts_format for layer in self.layers))


def read_facts(
    files: ModelFiles, speculative: Speculation | None = None, stored_as: ExpertsFormat | None = None
) -> Model:
    """Read a model's facts.

    Args:
        stored_as: a format to plan in place of what the files say.

    Raises:
        ConfigError: for a value that is not what its key promises.
    """
    config = files.config
    if not config and files.side_files:
        return Model(files.name, ModelFacts("", 0, (), known=True), only_quantisation=True)
    sections = (text_section(config), config)
    named = [part[key] for part in sections for key in ("dtype", "torch_dtype") if part.get(key)]
    dtype = str(named[0]).removeprefix("torch.") if named else ""
    formats = None if stored_as is None else everything_in(stored_as)
    facts = read_model(config, files.side_files, speculative=speculative, formats=formats)
    return Model(files.name, facts, _AUTO.get(dtype, dtype))
