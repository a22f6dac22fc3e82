"""What a model's config class takes for keys that config.json leaves out: absence of a key is not absence of experts.

The table was written from the classes of vLLM 0.32 and transformers 5.19 (tools/write_tables.py), so that no plan waits
for their import; a model type that it does not have is asked of the installed transformers.
"""

import functools
import importlib.util
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

TABLE = "the config classes of vLLM 0.32 and transformers 5.19"


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the defaults of its class for what it leaves out, and renamed keys under the class's names.

    A key that is there stays, null too: null is a value that the class keeps.
    """
    row = _table()["types"].get(str(config.get("model_type") or ""))
    return config if row is None else _filled(config, row["defaults"], row.get("renamed", {}))


def renamed_keys(config: Mapping[str, Any]) -> set[str]:
    """The class's names of keys that the config has under another name."""
    row = _table()["types"].get(str(config.get("model_type") or ""), {})
    return {new for old, new in row.get("renamed", {}).items() if old in config}


def installed_defaults(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The same by the class that the installed transformers has for a model type of no table; None without one."""
    model_type = str(config.get("model_type") or "")
    table = _table()
    known = model_type in table["types"] or model_type in table["without"]
    if not model_type or known or importlib.util.find_spec("transformers") is None:
        return None
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return None
    config_class = CONFIG_MAPPING[model_type]
    try:
        defaults = config_class().to_dict()
    except (TypeError, ValueError):
        # A class that cannot be made from nothing has no defaults for all.
        return None
    return _filled(config, defaults, getattr(config_class, "attribute_map", {}))


def _filled(config: Mapping[str, Any], defaults: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    filled = {renamed.get(key, key): value for key, value in config.items() if renamed.get(key) not in config}
    for key, value in defaults.items():
        if key not in filled:
            filled[key] = value
    for key, value in filled.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            below = with_defaults(value)
            known = defaults.get(key)
            # A section without a type of its own is one of its parent's class.
            filled[key] = _filled(value, known, {}) if below is value and isinstance(known, Mapping) else below
    return filled


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("defaults.json").read_text(encoding="utf-8")
    )
    return found
