"""Write the tables that the plan takes from other packages, as data files beside the code that reads them.

python -m tools.write_tables [--architectures FILE.whl|FOLDER ...] [--defaults] [--flags]

architectures.json: which classes a release of vLLM knows, from the source of its registry, which is not imported. Each
argument is a wheel or an installed folder; releases that are not named stay as they are.
defaults.json: what a model's config class takes for a key that config.json leaves out, from the classes of the
installed vLLM and transformers: only keys that the plan reads, and only classes that have experts.
flags.json: the flags of `vllm serve`, from the parser of the vLLM that is installed (or first on PYTHONPATH); other
releases stay as they are.
"""

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_megamoe.plan.read_config.families import FAMILIES
from vllm_megamoe.plan.read_config.family import NUM_EXPERTS, NUM_LAYERS, Family, generic
from vllm_megamoe.plan.read_config.keys import Keys

FOLDER = Path(__file__).resolve().parents[1] / "vllm_megamoe" / "plan" / "read_config"
FLAGS = FOLDER.parents[1] / "cli" / "serve_line" / "flags.json"
ARCHITECTURES, DEFAULTS = FOLDER / "architectures.json", FOLDER / "defaults.json"
_REGISTRY = "vllm/model_executor/models/registry.py"


def registry_of(source: str) -> tuple[list[str], dict[str, str]]:
    """Classes of its own that a registry's source lists, and the last release of each that it says was dropped.

    The generic classes over transformers' models are left out: they stand for no architecture.
    """
    tables = {
        node.targets[0].id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    own = [name for name in tables if name.endswith("_MODELS") and name not in _NOT_OWN]
    classes = {key.value for name in own for key in tables[name].keys if isinstance(key, ast.Constant)}
    return sorted(map(str, classes)), ast.literal_eval(tables["_PREVIOUSLY_SUPPORTED_MODELS"])


_NOT_OWN = (
    "_VLLM_MODELS",
    "_TRANSFORMERS_SUPPORTED_MODELS",
    "_TRANSFORMERS_BACKEND_MODELS",
    "_PREVIOUSLY_SUPPORTED_MODELS",
    "_OOT_SUPPORTED_MODELS",
)


def release_of(place: Path) -> tuple[str, str]:
    """Version and registry of a wheel, or of a folder that holds an installed `vllm`."""
    if place.suffix == ".whl":
        with zipfile.ZipFile(place) as wheel:
            return place.name.split("-")[1].split("+")[0], wheel.read(_REGISTRY).decode()
    info = next(iter(sorted(place.glob("vllm*.dist-info"))))
    found = re.search(r"-([\d.]+)", info.name)
    if found is None:
        raise ValueError(f"{info}: no version in its name")
    return found[1], (place / _REGISTRY).read_text(encoding="utf-8")


def write_architectures(places: list[Path]) -> None:
    """Put the registries of these releases into the table."""
    table: dict[str, Any] = json.loads(ARCHITECTURES.read_text()) if ARCHITECTURES.exists() else {}
    for place in places:
        version, source = release_of(place)
        classes, dropped = registry_of(source)
        table.setdefault("registries", {})[version] = classes
        table["dropped"] = {**table.get("dropped", {}), **dropped}
    _write(ARCHITECTURES, table)


class _Asked(Keys):
    """Keys that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__({})
        self.names: set[str] = set()

    def _find(self, names: Any) -> None:
        self.names.update(names)

    def is_list(self, name: str) -> bool:
        self.names.add(name)
        return False


def keys_read() -> set[str]:
    """Every key that some family reads."""
    asked = _Asked()
    rules: tuple[Family, ...] = (*FAMILIES, generic(asked))
    for family in rules:
        asked.names.update(family.num_layers, family.num_experts, family.topk, family.intermediate, family.latent)
        asked.names.update(family.scaling, family.drafts.count if family.drafts else ())
        if family.shared:
            asked.names.update(family.shared.count, family.shared.width)
            (family.shared.activation or family.activation)(asked, 1)
        family.where(asked, 1)
        family.activation(asked, 1)
    return asked.names | {"hidden_size", "d_model"}


def config_classes() -> Iterator[tuple[str, Any]]:
    """Every model type with its config class, as vLLM looks them up."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    for model_type in sorted({*CONFIG_MAPPING.keys(), *_CONFIG_REGISTRY}):
        try:
            yield model_type, _CONFIG_REGISTRY.get(model_type) or CONFIG_MAPPING[model_type]
        except (ImportError, AttributeError, KeyError, ValueError) as error:
            print(f"{model_type}: no class here ({error})", file=sys.stderr)


def write_defaults() -> None:
    """Write defaults.json: by model type the defaults and the names that the class renames, and the types without."""
    read = keys_read()
    table: dict[str, Any] = {}
    without: list[str] = []
    for model_type, config_class in config_classes():
        try:
            values = config_class().to_dict()
        except Exception as error:  # a class may demand arguments: then it has no defaults
            print(f"{model_type}: no defaults ({type(error).__name__})", file=sys.stderr)
            without.append(model_type)
            continue
        kept = _kept(values, read)
        if _names_experts(kept):
            renamed = {k: v for k, v in config_class.attribute_map.items() if k in read and v in read}
            table[model_type] = {"defaults": kept} | ({"renamed": renamed} if renamed else {})
        else:
            without.append(model_type)
    _write(DEFAULTS, {"types": table, "without": without})


def _kept(values: Mapping[str, Any], read: set[str]) -> dict[str, Any]:
    """Values of keys that the plan reads, with the sections below that have some."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            below = _kept(value, read)
            if _names_experts(below):
                kept[key] = below
        elif key in read and value is not None and not isinstance(value, list | tuple | dict) and key not in NUM_LAYERS:
            kept[key] = value
    return kept


def _names_experts(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in NUM_EXPERTS) or any(isinstance(v, Mapping) for v in values.values())


def write_flags() -> None:
    """Put the flags of the vLLM at hand into flags.json: how many values each takes, and short names."""
    from vllm import __version__
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    flags: dict[str, str] = {}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        long = [name for name in action.option_strings if name.startswith("--")]
        values = "switch" if action.nargs == 0 else {None: "one", "?": "optional"}.get(action.nargs, "many")
        flags.update({name.removeprefix("--"): values for name in long})
        flags.update({n: long[0].removeprefix("--") for n in action.option_strings if not n.startswith("--") and long})
    table = json.loads(FLAGS.read_text()) if FLAGS.exists() else {}
    _write(FLAGS, {**table, __version__.split("+")[0]: flags})


def _write(file: Path, table: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> int:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.write_tables", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--architectures", nargs="+", type=Path, default=[], metavar="PLACE")
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--flags", action="store_true")
    asked = parser.parse_args()
    if asked.architectures:
        write_architectures(asked.architectures)
    if asked.defaults:
        write_defaults()
    if asked.flags:
        write_flags()
    return 0


if __name__ == "__main__":
    sys.exit(main())
