"""The flags of `vllm serve`, as far as a command line can be read without vLLM.

flags.json holds them for the releases that this package meets, from their own parsers (tools/write_tables.py).
"""

import difflib
import functools
import json
from importlib import resources

from vllm_megamoe.errors import ConfigError

_ALIKE = 0.85
"""From which likeness on (difflib) an unknown flag is a misspelt one; flags of other releases differ more."""

_SWITCH_PREFIXES = ("no-", "enable-", "disable-", "skip-", "trust-", "use-", "return-")
_MOST = {"switch": 0, "one": 1, "optional": 1, "many": 1_000}


@functools.cache
def _releases() -> dict[str, dict[str, str]]:
    text = resources.files(__package__).joinpath("flags.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return dict(sorted(found.items()))


@functools.cache
def _all() -> dict[str, str]:
    """Long flag -> what it takes, short flag with its dash -> the long one; of the newest release that has it."""
    return {name: value for flags in _releases().values() for name, value in flags.items()}


def releases() -> tuple[str, ...]:
    """The releases of vLLM whose flags are known."""
    return tuple(_releases())


def is_known(name: str) -> bool:
    """Whether one of the releases has the flag."""
    return name in _all()


def long_name(written: str) -> str:
    """The flag that a word names, without its dashes: underscores count as dashes, a unique beginning as the whole.

    Raises:
        ConfigError: a misspelt flag, or a beginning of several.
    """
    if not written.startswith("--"):
        return _all().get(written, written.lstrip("-"))
    name = written.removeprefix("--").replace("_", "-")
    if name in _all():
        return name
    begun = [flag for flag in _all() if flag.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise ConfigError(
            f"--{name} in the command line could mean --{', --'.join(sorted(begun)[:5])}; expected the whole name. "
            "Write it out."
        )
    near = difflib.get_close_matches(name, [flag for flag in _all() if not flag.startswith("-")], 1, _ALIKE)
    if near:
        raise ConfigError(
            f"--{name} in the command line is no flag of vLLM {' or '.join(releases())}; did you mean --{near[0]}? "
            "Correct it: vLLM would stop there."
        )
    return name


def most_values(name: str) -> int:
    """How many words behind a flag may be its values: 0 for a switch, 1, or many; a guess for an unknown flag."""
    if name in _all():
        return _MOST[_all()[name]]
    return 0 if name.startswith(_SWITCH_PREFIXES) else 1
