"""Models taught from outside: how a plug-in or a user makes an unknown architecture known to the plan.

A package names a function without arguments that calls `register_model_facts` as entry point of the group
`vllm_megamoe.model_facts`; it is run before the first model is read, in the server and in `vllm-megamoe plan` alike.
"""

import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllm_megamoe.checkpoint.formats import ExpertsFormat
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.facts import MoeFacts

ENTRY_POINTS = "vllm_megamoe.model_facts"
"""Group of entry points that teach models."""

ReadFacts = Callable[[Mapping[str, Any]], Iterable[MoeFacts]]
"""From config.json as a mapping to the facts of each MoE layer, in order; empty for a dense model."""

_TAUGHT: dict[str, ReadFacts] = {}


def register_model_facts(architecture: str, fn: ReadFacts) -> None:
    """Teach how a model's config.json is read; this wins over the built-in table.

    Args:
        architecture: the entry of config.json's `architectures`, such as `MyMoeForCausalLM`.
        fn: returns one MoeFacts per MoE layer. Its `experts_format` says how the experts are stored
            (vllm_megamoe.checkpoint.formats: `BF16`, or `format_named(name)`).

    Raises:
        ConfigError: for an empty name, something that cannot be called, or a name that is taught already.
    """
    if not isinstance(architecture, str) or not architecture:
        raise ConfigError(
            f"register_model_facts: architecture = {architecture!r}; expected the name that config.json lists under "
            "architectures. Pass it as a string."
        )
    if not callable(fn):
        raise ConfigError(
            f"register_model_facts({architecture!r}): fn is {type(fn).__name__}; expected a function of the config "
            "that returns MoeFacts. Pass the function itself."
        )
    if _TAUGHT.get(architecture, fn) is not fn:
        raise ConfigError(
            f"register_model_facts({architecture!r}): this architecture has a function already, "
            f"{_TAUGHT[architecture]!r}; expected one. Register it in one place."
        )
    _TAUGHT[architecture] = fn


def taught(architecture: str) -> Callable[[Mapping[str, Any]], tuple[MoeFacts, ...]] | None:
    """The function for an architecture, with its result checked; None where none was registered.

    Raises:
        ConfigError: an entry point of an installed package fails; from the function, when it fails or returns something
            else than facts.
    """
    _load_entry_points()
    fn = _TAUGHT.get(architecture)
    return None if fn is None else functools.partial(_call, architecture, fn)


@functools.cache
def _load_entry_points() -> None:
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()()
        except Exception as error:
            raise ConfigError(
                f"entry point {point.name!r} = {point.value!r} of {ENTRY_POINTS}: {error!r}; expected a function "
                "without arguments that calls register_model_facts. Fix or uninstall its package."
            ) from error


def _call(architecture: str, fn: ReadFacts, config: Mapping[str, Any]) -> tuple[MoeFacts, ...]:
    try:
        return _checked(architecture, fn(config))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"The function registered for {architecture!r} failed: {error!r}; expected MoeFacts for this config. Fix "
            "it, or correct the config."
        ) from error


def _checked(architecture: str, result: object) -> tuple[MoeFacts, ...]:
    if not isinstance(result, Iterable) or isinstance(result, str | bytes):
        raise _wrong(architecture, f"{type(result).__name__}")
    facts = tuple(result)
    for place, item in enumerate(facts):
        if not isinstance(item, MoeFacts):
            raise _wrong(architecture, f"an item {place} of type {type(item).__name__}")
        if not isinstance(item.experts_format, ExpertsFormat):
            raise _wrong(architecture, f"an item {place} whose experts_format is {item.experts_format!r}")
    return facts


def _wrong(architecture: str, got: str) -> ConfigError:
    return ConfigError(
        f"The function registered for {architecture!r} returned {got}; expected an iterable of MoeFacts, one per MoE "
        "layer. Return a list, empty for a dense model."
    )
