"""A section of config.json, read by the alternative names that a value has."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.numerics.clamp import no_clamp


class Keys:
    """Values of one section; each reader takes the first of several names that is there and not null.

    Args:
        values: the section.
        layers: its decoder layers; lists with an entry per layer must not be shorter. 0 where that is not known.

    Raises:
        ConfigError: from every reader, when the value found is of another kind.
    """

    def __init__(self, values: Mapping[str, Any], layers: int = 0) -> None:
        self.values = values
        self.layers = layers

    def integer(self, *names: str, default: int = 0) -> int:
        """A whole number; a list of equal numbers counts as one (Hunyuan writes one per layer)."""
        found = self._find(names)
        if found is None:
            return default
        name, value = found
        if isinstance(value, list | tuple) and len(set(map(str, value))) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "a whole number")
        return value

    def step(self, name: str, default: int = 1) -> int:
        """A whole number that layers are counted by, at least 1."""
        value = self.integer(name, default=default)
        if value < 1:
            raise _wrong(name, value, "a whole number from 1")
        return value

    def number(self, *names: str, default: float = 1.0) -> float:
        """A number as float; infinity is one, NaN is none."""
        found = self._find(names)
        return default if found is None else _number(*found)

    def limits(self, name: str) -> list[float | None]:
        """A list of numbers, one for each layer; null for a layer without."""
        values = self.per_layer(name, self.items(name))
        return [None if value is None else _number(f"{name}[{i}]", value) for i, value in enumerate(values)]

    def per_layer(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Values with one entry for each decoder layer, or none at all; entries beyond it are of draft layers."""
        if values and len(values) < self.layers:
            raise ConfigError(
                f"config.json: {name} has {len(values)} entries for {self.layers} decoder layers; expected one for "
                "each. Correct the list or the number of layers."
            )
        return values

    def bound(self, *names: str, default: float = 0.0) -> float | None:
        """A clamp: None where the config has none, 0 or infinity, which all mean no clamp."""
        limit = self.number(*names, default=default)
        if limit < 0:
            raise _wrong(names[0], limit, "a clamp above 0, or 0 for none")
        return no_clamp(limit)

    def text(self, *names: str, default: str = "") -> str:
        """A string."""
        found = self._find(names)
        if found is None:
            return default
        name, value = found
        if not isinstance(value, str):
            raise _wrong(name, value, "a string")
        return value

    def items(self, *names: str) -> Sequence[Any]:
        """A list, empty when no name is there."""
        found = self._find(names)
        if found is None:
            return ()
        name, value = found
        if not isinstance(value, list | tuple):
            raise _wrong(name, value, "a list")
        return value

    def has(self, *names: str) -> bool:
        """Whether one of the names is there and not null."""
        return self._find(names) is not None

    def is_list(self, name: str) -> bool:
        """Whether the value under this name is a list (some keys are a number in one model, a list in another)."""
        return isinstance(self.values.get(name), list | tuple)

    def _find(self, names: Sequence[str]) -> tuple[str, Any] | None:
        return next(((n, self.values[n]) for n in names if self.values.get(n) is not None), None)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _wrong(name, value, "a number")
    return float(value)


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    if isinstance(value, list | tuple):
        return ConfigError(
            f"config.json: {name} = {value!r}, one value for each kind of layer or input (ERNIE-VL has experts for "
            f"text and others for images); this version plans models with one value, {expected}. Serve this model "
            "without --quantization megamoe, or teach it with register_model_facts(architecture, fn)."
        )
    return ConfigError(
        f"config.json: {name} = {value!r}; expected {expected}. Correct the file, or teach the model with "
        "register_model_facts(architecture, fn)."
    )
