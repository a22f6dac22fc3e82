"""A quantisation's config as its tool wrote it, read key by key: a value of another kind is an error with its place."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_megamoe.errors import ConfigError


class Described:
    """An object of such a file.

    Args:
        values: its keys.
        place: the file, and the keys that lead to the object (`config.json: quantization_config`).

    Raises:
        ConfigError: from every reader, when a value is of another kind than its key promises.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values = values
        self.place = place

    def has(self, key: str) -> bool:
        """Whether a key is there and not null, empty or 0."""
        return bool(self.values.get(key))

    def text(self, key: str, default: str = "") -> str:
        """A word; null counts as absent, a number as its digits."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, Mapping | list | tuple):
            raise self.wrong(key, "a word")
        return str(value)

    def whole(self, *keys: str, default: int) -> int:
        """A whole number under the first of these keys that is there and not null; a text of digits is one too."""
        key = next((key for key in keys if self.values.get(key) is not None), None)
        if key is None:
            return default
        value = self.values[key]
        if isinstance(value, str) and value.removeprefix("-").isdecimal():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number")
        return value

    def part(self, key: str) -> "Described":
        """An object below; empty where there is none. Some tools write it as one JSON text."""
        value = self._parsed(key)
        if not isinstance(value or {}, Mapping):
            raise self.wrong(key, "an object")
        return Described(value or {}, f"{self.place}.{key}")

    def parts(self) -> Iterator[tuple[str, "Described"]]:
        """Every key with the object below it."""
        for key in self.values:
            if not isinstance(self.values[key], Mapping):
                raise self.wrong(key, "an object")
            yield key, Described(self.values[key], f"{self.place}.{key}")

    def list_of_parts(self, key: str) -> list["Described"]:
        """Objects of a list, or the one object that stands in its place; none where there is nothing."""
        value = self.values.get(key) or []
        found = [value] if isinstance(value, Mapping) else value
        if not isinstance(found, list | tuple) or not all(isinstance(each, Mapping) for each in found):
            raise self.wrong(key, "an object, or a list of objects")
        return [Described(each, f"{self.place}.{key}[{i}]") for i, each in enumerate(found)]

    def names(self, *keys: str) -> tuple[str, ...]:
        """Module names: the entries of the first of these keys that holds any."""
        for key in keys:
            value = self._parsed(key)
            if value and not isinstance(value, list | tuple):
                raise self.wrong(key, "a list of module names")
            if value:
                return tuple(map(str, value))
        return ()

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The error about a key's value."""
        return ConfigError(
            f"{self.place}.{key} = {_short(self.values.get(key))}; expected {expected}. Correct the file, or fetch the "
            "checkpoint's files again."
        )

    def _parsed(self, key: str) -> Any:
        value = self.values.get(key)
        if isinstance(value, str) and value[:1] in ("[", "{"):
            try:
                return json.loads(value)
            except ValueError as error:
                raise self.wrong(key, f"JSON in this text ({error})") from error
        return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
