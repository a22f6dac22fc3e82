"""Lists of module names in config files, and the three ways in which tools mean them."""

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.recognise.names import Names
from vllm_megamoe.errors import ConfigError


def listed(section: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """The entries of the first of these keys that is there; some tools write the list as one JSON string.

    Raises:
        ConfigError: the value is no list.
    """
    for key in keys:
        value = section.get(key)
        if isinstance(value, str) and value.startswith("["):
            value = json.loads(value)
        if value and not isinstance(value, list | tuple):
            raise ConfigError(
                f"The quantisation's config: {key} = {value!r}; wanted a list of module names. Correct the file."
            )
        if value:
            return tuple(map(str, value))
    return ()


class Patterns:
    """Entries that name modules.

    Args:
        entries: names, `re:` and a regular expression, or names with `*`.
        inside: whether a plain entry may stand anywhere in the name as a run of whole components (transformers,
            ModelOpt); otherwise it must begin the name (compressed-tensors).
    """

    def __init__(self, entries: Iterable[str], inside: bool) -> None:
        entries = list(entries)
        globs = [fnmatch.translate(entry) for entry in entries if "*" in entry and not entry.startswith("re:")]
        # Published files hold hundreds of globs: one expression for all of them is much faster than one for each.
        regular = [entry[3:] for entry in entries if entry.startswith("re:")] + (["|".join(globs)] if globs else [])
        self._plain = {entry.rstrip("*").strip(".") for entry in entries if not entry.startswith(("re:", "*"))} - {""}
        # Runs of other lengths than the entries have need no look: models list thousands of names.
        self._lengths = sorted({entry.count(".") + 1 for entry in self._plain})
        self._regular = [re.compile(pattern) for pattern in regular]
        self._inside = inside

    def match(self, names: Names) -> bool:
        """Whether an entry means the module of these names."""
        return any(self._plain_match(name) or any(r.match(name) for r in self._regular) for name in names)

    def _plain_match(self, name: str) -> bool:
        parts = name.split(".")
        starts = range(len(parts)) if self._inside else (0,)
        return any(".".join(parts[i : i + n]) in self._plain for i in starts for n in self._lengths)
