"""Write a command line so that a shell reads it as it is meant."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_megamoe.cli.serve_line.line import Flag, ServeLine

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


def config_flag(config: Mapping[str, Any]) -> Flag:
    """`--additional-config` with a JSON object."""
    return make_flag("additional-config", json.dumps(config))


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
