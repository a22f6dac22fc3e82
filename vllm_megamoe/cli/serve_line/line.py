"""A command line as its parts (environment, command, model, flags), a change to it, and how it is written again.

What is written keeps the words of the user, so that a shell reads it as it was meant.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from vllm_megamoe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as it was written.

    Attributes:
        name: long name with dashes, without the leading ones (`tensor-parallel-size`).
        values: its values, none for a switch.
        path: what stands behind dots, for `--additional-config.megamoe.use_case a8w8-int`.
        words: the words of the command line.
    """

    name: str
    values: tuple[str, ...]
    words: tuple[str, ...]
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeLine:
    """A `vllm serve` line.

    Attributes:
        environment: assignments in front of the command, in order.
        before: words between these and the command (`nohup`, `numactl ...`).
        command: `vllm serve`, or `python -m vllm....api_server`.
        model: the positional argument, or the value of `--model`.
        flags: in order.
        after: what follows a shell operator (`> log 2>&1 &`).
        config_file: the file of `--config`, whose flags stand in front of the line's own; empty for none.
    """

    environment: tuple[tuple[str, str], ...]
    before: tuple[str, ...]
    command: tuple[str, ...]
    model: str
    flags: tuple[Flag, ...]
    after: tuple[str, ...] = ()
    config_file: str = ""

    def variable(self, name: str) -> str | None:
        """The value of an environment variable in front of the command, None when it is not set there."""
        return dict(self.environment).get(name)

    def value(self, name: str) -> str | None:
        """The value of a flag, of its last occurrence; None when it is absent."""
        found = [flag.values[0] for flag in self.flags if flag.name == name and flag.values and not flag.path]
        return found[-1] if found else None

    def all_values(self, name: str) -> tuple[str, ...]:
        """All values of a flag that takes several, of its last occurrence; none when it is absent."""
        found = [flag.values for flag in self.flags if flag.name == name and not flag.path]
        return found[-1] if found else ()

    def switch(self, name: str) -> bool | None:
        """Whether a switch is on (`--name`), off (`--no-name`) or not given (None)."""
        found = [flag.name == name for flag in self.flags if flag.name in (name, f"no-{name}")]
        return found[-1] if found else None

    def number(self, name: str, default: int) -> int:
        """The value of a flag as a positive integer; `4k` and `4K` as vLLM reads them (1000 and 1024).

        Raises:
            ConfigError: for anything else.
        """
        text = self.value(name)
        if text is None:
            if any(flag.name == name for flag in self.flags):
                raise ConfigError(f"--{name} has no value in the command line; expected a number from 1 behind it.")
            return default
        factor = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}.get(text[-1:], 0)
        digits = text[:-1] if factor else text
        if not digits.isdecimal() or int(digits) < 1:
            raise ConfigError(f"--{name} {text!r} in the command line; expected a number from 1.")
        return int(digits) * (factor or 1)

    def additional_config(self) -> dict[str, Any]:
        """The value of `--additional-config`; see `json`."""
        return self.json("additional-config") or {}

    def json(self, name: str) -> dict[str, Any] | None:
        """A flag's JSON object; dotted forms, where there are any, are all of it, as vLLM's parser has it.

        Returns:
            The object, None where the flag is absent.

        Raises:
            ConfigError: when it is not a JSON object.
        """
        dotted = [flag for flag in self.flags if flag.name == name and flag.path and flag.values]
        text = self.value(name)
        if not dotted:
            return None if text is None else _json_object(name, text)
        merged: dict[str, Any] = {}
        for flag in dotted:
            _put(name, merged, flag.path, flag.values[0])
        return merged


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--{name} {text!r} is not JSON ({error}); expected an object in single quotes, such as "
            '\'{"megamoe": {"profile": "a3@9.1"}}\'.'
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"--{name} {text!r} is {type(found).__name__}; expected a JSON object. Write {{...}} in single quotes."
        )
    return found


def _put(name: str, target: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    """Set what a dotted form says: JSON or a word, and a list with commas behind `+`."""
    value: Any = text.split(",") if path[-1].endswith("+") else _json_or_text(text)
    for key in path[:-1]:
        below = target.setdefault(key, {})
        if not isinstance(below, dict):
            raise ConfigError(
                f"--{name}.{'.'.join(path)}: {key!r} holds {below!r}; expected an object. Give it in one form only."
            )
        target = below
    target[path[-1].removesuffix("+")] = value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class Step(BaseModel):
    """What to do with a command line, and why.

    Attributes:
        action: `drop` what is there, `add` what is missing, `set` another value.
        what: the flag or variable as it is written, with its value where it has one.
        why: a sentence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["drop", "add", "set"]
    what: str
    why: str


_VARIABLE = re.compile(r"[\w./:=@%+,-]*\$\{?\w+\}?[\w./:=@%+,$\{\}-]*")


def write_line(line: ServeLine) -> str:
    """One line: environment, command, model, flags."""
    words = [f"{name}={_quote(value)}" for name, value in line.environment]
    words += [_quote(word) for word in (*line.before, *line.command)]
    words += [_quote(line.model)] if line.command[-1] == "serve" else ["--model", _quote(line.model)]
    words += [_quote(word) for flag in line.flags for word in flag.words]
    # Redirections and `&` lose their meaning in quotes.
    return " ".join([*words, *line.after])


def make_flag(name: str, *values: str) -> Flag:
    """A flag with its values as words of their own."""
    return Flag(name, values, (f"--{name}", *values))


def json_flag(name: str, config: Mapping[str, Any]) -> Flag:
    """A flag with a JSON object."""
    return make_flag(name, json.dumps(config))


def without(flags: Sequence[Flag], *names: str) -> tuple[Flag, ...]:
    """The flags that have none of these names; `no-` forms go with them."""
    gone = {*names, *(f"no-{name}" for name in names)}
    return tuple(flag for flag in flags if flag.name not in gone)


def put(flags: Sequence[Flag], new: Flag) -> tuple[Flag, ...]:
    """The flags with `new` in the place of the first of its name, or at the end."""
    gone = {new.name, f"no-{new.name}"}
    at = next((i for i, flag in enumerate(flags) if flag.name in gone), None)
    kept = without(flags, new.name)
    if at is None:
        return (*kept, new)
    at -= sum(flag.name in gone for flag in flags[:at])
    return (*kept[:at], new, *kept[at:])


def _quote(word: str) -> str:
    # A variable of the user's shell must stay one: single quotes would make it a plain word.
    return f'"{word}"' if _VARIABLE.fullmatch(word) else shlex.quote(word)
