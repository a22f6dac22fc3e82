"""The file of `vllm serve --config FILE`, as words of a command line (FlexibleArgumentParser of vLLM 0.30 and 0.32)."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_megamoe.cli.serve_line.flags import is_known
from vllm_megamoe.errors import ConfigError

_EXAMPLE = "expected a YAML file with one flag a line, such as `tensor-parallel-size: 8`"


def config_words(file: str) -> list[str]:
    """The flags of a file: a mapping becomes JSON, a list several values, `true` and `false` a switch.

    Raises:
        ConfigError: no such file, another ending than .yaml or .yml, or something else than a mapping of flags.
    """
    path = Path(file)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--config {file} in the command line; {_EXAMPLE}. vLLM takes .yaml and .yml alone.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--config {file} in the command line cannot be read ({error}); {_EXAMPLE}. Its flags decide what is "
            "served: run this where the file is, or write them into the line."
        ) from error
    yaml: Any = importlib.import_module("yaml")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file} is not YAML ({' '.join(str(error).split())}); {_EXAMPLE}.") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"--config {file} holds {type(found).__name__} in place of flags; {_EXAMPLE}.")
    if "config" in found:
        raise ConfigError(f"--config {file} names another file, {found['config']}; vLLM reads one. Join the files.")
    return [word for key, value in found.items() for word in _words(key.replace("_", "-"), value)]


def _words(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        # vLLM passes over a `false` whose flag has no opposite; a name that it does not know goes on, to be named.
        opposite = f"no-{key}"
        if value or is_known(opposite) or not is_known(key):
            yield f"--{key if value else opposite}"
    elif isinstance(value, dict):
        yield from (f"--{key}", json.dumps(value))
    elif value != []:
        yield from (f"--{key}", *(str(each) for each in (value if isinstance(value, list) else [value])))
