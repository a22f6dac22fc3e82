"""Every environment variable that this package reads: its name, what it takes, and its value.

A value is read when it is needed, never at import; an empty one counts as unset. `wrong_variables` looks at all of them
at once, so that the config stage can reject a bad one before a weight is read.

    VLLM_MEGAMOE_PROFILE          product and operator revision whose limits hold where nobody names one
    VLLM_MEGAMOE_SIMULATE         product that the simulator stands for
    VLLM_MEGAMOE_DEVIATIONS       what that simulated product does wrong on purpose
    VLLM_MEGAMOE_TIMEOUT_S        seconds that a rank of the twin waits for the others
    VLLM_MEGAMOE_LOAD_LOG_STEPS   steps between two reports of expert load in the log
    VLLM_MEGAMOE_LOAD_FILE        file that the expert load is written to
    VLLM_MEGAMOE_KERNELS          whether the twin multiplies few rows with kernels that it makes for this processor
    VLLM_MEGAMOE_CACHE            folder of what is kept between processes: the twin's kernels
    VLLM_MEGAMOE_UNTESTED         `on`: serve with releases of vLLM and vllm-ascend that nobody has tried
    VLLM_MEGAMOE_SIMULATED_NPU    product that a simulated torch_npu stands for (contract tests)
    VLLM_MEGAMOE_SHARED           folder of shared test data (this package's own tests)
    HCCL_BUFFSIZE                 HCCL's own: MB of one half of every communicator's window on A2 and A3

Variables that belong to vLLM (threads, KV cache) are the lanes' business.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import PROFILE_NAMES, is_unsupported

Value = TypeVar("Value")

PREFIX = "VLLM_MEGAMOE_"
PROFILE_VARIABLE = "VLLM_MEGAMOE_PROFILE"
SIMULATE_VARIABLE = "VLLM_MEGAMOE_SIMULATE"
BUFFSIZE_VARIABLE = "HCCL_BUFFSIZE"
PRODUCTS = tuple(name for name in PROFILE_NAMES if name != "none")

DEFAULT_TIMEOUT_S = 300.0
FIRST_CALL_TIMEOUT_S = 1800.0
"""On the first call of a buffer, where nobody names a time: another rank may still load or compile."""
DEFAULT_STEPS = 100
DEFAULT_MB = 200
"""HCCL's own default (operator facts, section 3.1; torch_api.txt sets the same in its example)."""
_LONGEST_TIMEOUT_S = 31_536_000


@dataclass(frozen=True, slots=True)
class Variable(Generic[Value]):
    """One environment variable.

    Attributes:
        name: of the variable.
        expected: what it takes, as the end of a sentence that begins with "expected".
        example: a value that it takes.
        parse: text -> value, None where the text is none.
        why: text -> why a value that looks right is none, with a full stop; empty where `expected` says all.
    """

    name: str
    expected: str
    example: str
    parse: Callable[[str], Value | None]
    why: Callable[[str], str] = lambda text: ""

    def read(self, environment: Mapping[str, str] | None = None) -> Value | None:
        """The value, None where the variable is unset or empty.

        Args:
            environment: to read from, this process's own by default.

        Raises:
            ConfigError: it has another value than it takes.
        """
        text = (os.environ if environment is None else environment).get(self.name) or ""
        if not text:
            return None
        value = self.parse(text)
        if value is None:
            raise ConfigError(self.wrong(text))
        return value

    def wrong(self, text: str) -> str:
        """What is wrong with a value, a sentence with what to do; empty where nothing is."""
        if self.parse(text) is not None:
            return ""
        why = self.why(text)
        return (
            f"{self.name}={text!r}; expected {self.expected}.{' ' if why else ''}{why} "
            f"Set it like {self.name}={self.example}, or unset it."
        )


def _profile(text: str) -> str | None:
    return text if text in PROFILE_NAMES else None


def _product(text: str) -> str | None:
    return text if text in PRODUCTS else None


def _why_no_profile(text: str) -> str:
    if not is_unsupported(text):
        return ""
    return "The operator mega_moe does not exist on that product (operator_readme.txt, table of supported products)."


def is_timeout(seconds: float) -> bool:
    """Whether a rank can wait so long: above 0, at most a year; beyond that, torch's own clocks overflow."""
    return math.isfinite(seconds) and 0 < seconds <= _LONGEST_TIMEOUT_S


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if is_timeout(seconds) else None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _positive(text: str) -> int | None:
    return _whole(text) or None


DEVIATION_NAMES = (
    "excess8_nibbles",
    "window_factor_1",
    "w4a8_receive",
    "fp16_saturates",
    "scale_bits_18",
    "overflow_ends",
)
"""Switches of simulator/deviations.py."""


def _deviations(text: str) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in text.split(","))
    return names if set(names) <= set(DEVIATION_NAMES) else None


def _on_or_off(text: str) -> str | None:
    return text if text in ("on", "off") else None


def _file(text: str) -> str | None:
    path = Path(text).expanduser()
    return text if path.absolute().parent.is_dir() and not path.is_dir() else None


def _anything(text: str) -> str:
    return text


PROFILE = Variable(PROFILE_VARIABLE, f"one of {', '.join(PROFILE_NAMES)}", "a3@9.1", _profile, _why_no_profile)
SIMULATE = Variable(SIMULATE_VARIABLE, f"one of {', '.join(PRODUCTS)}", "a3@9.1", _product, _why_no_profile)
DEVIATIONS = Variable(
    "VLLM_MEGAMOE_DEVIATIONS", f"names of {', '.join(DEVIATION_NAMES)}, with commas", "overflow_ends", _deviations
)
TIMEOUT = Variable("VLLM_MEGAMOE_TIMEOUT_S", "a number of seconds above 0, at most a year", "300", _seconds)
LOAD_LOG_STEPS = Variable("VLLM_MEGAMOE_LOAD_LOG_STEPS", "a whole number of steps, 0 for no lines", "100", _whole)
LOAD_FILE = Variable("VLLM_MEGAMOE_LOAD_FILE", "a file in a folder that exists", "load.json", _file)
KERNELS = Variable("VLLM_MEGAMOE_KERNELS", "on or off", "off", _on_or_off)
UNTESTED = Variable("VLLM_MEGAMOE_UNTESTED", "on or off", "on", _on_or_off)
CACHE = Variable("VLLM_MEGAMOE_CACHE", "a folder", "~/.cache/vllm-megamoe", _anything)
SIMULATED_NPU = Variable("VLLM_MEGAMOE_SIMULATED_NPU", f"one of {', '.join(PRODUCTS)}", "a3@9.1", _product)
SHARED = Variable("VLLM_MEGAMOE_SHARED", "a folder", "../shared", _anything)
BUFFSIZE = Variable(BUFFSIZE_VARIABLE, "a whole number of MB from 1 on", str(DEFAULT_MB), _positive)

VARIABLES: Mapping[str, Variable[str] | Variable[int] | Variable[float] | Variable[tuple[str, ...]]] = {
    variable.name: variable
    for variable in (
        PROFILE,
        SIMULATE,
        DEVIATIONS,
        TIMEOUT,
        LOAD_LOG_STEPS,
        LOAD_FILE,
        KERNELS,
        UNTESTED,
        CACHE,
        SIMULATED_NPU,
        SHARED,
        BUFFSIZE,
    )
}
"""All that this package reads, by name."""


def wrong_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for each variable whose value is wrong, and for two that contradict each other; empty when none is.

    Args:
        environment: to look at, this process's own by default.
    """
    found = os.environ if environment is None else environment
    wrong = [variable.wrong(found[name]) for name, variable in VARIABLES.items() if found.get(name)]
    wrong = [sentence for sentence in wrong if sentence]
    if not wrong:
        try:
            choose_profile(None, found)
        except ConfigError as error:
            wrong.append(str(error))
    return wrong


def as_set_before(assignments: Mapping[str, str]) -> dict[str, str]:
    """The environment that a command gets which a shell starts from here with assignments before it."""
    return {**os.environ, **assignments}


def simulated_profile() -> str:
    """The product and revision that VLLM_MEGAMOE_SIMULATE names, empty when nothing is simulated.

    Raises:
        ConfigError: no such product.
    """
    return SIMULATE.read() or ""


def choose_profile(named: str | None, environment: Mapping[str, str] | None = None) -> str:
    """The profile that holds: the one named, else the environment's, else `none`; under simulation the simulated one.

    Raises:
        ConfigError: another profile is named than the one that is simulated, or a variable has a wrong value.
    """
    asked = f"profile={named!r}" if named else ""
    expected = named or ""
    if not expected:
        expected = PROFILE.read(environment) or ""
        asked = f"{PROFILE_VARIABLE}={expected!r}"
    simulated = SIMULATE.read(environment)
    if simulated is None:
        return expected or "none"
    if expected not in ("", simulated):
        raise ConfigError(
            f"{asked} with {SIMULATE_VARIABLE}={simulated!r}; expected one of them, or the same in both: "
            f"a simulated product has its own limits. Drop the profile, or unset {SIMULATE_VARIABLE}."
        )
    return simulated


def profile_from_environment() -> str:
    """The profile that the environment names or simulates, else `none`.

    Raises:
        ConfigError: see `choose_profile`.
    """
    return choose_profile(None)


def given_timeout_s() -> float | None:
    """Seconds that VLLM_MEGAMOE_TIMEOUT_S names, None where it names none (then DEFAULT_TIMEOUT_S holds).

    Raises:
        ConfigError: see `Variable.read`.
    """
    return TIMEOUT.read()


def load_log_steps() -> int:
    """Steps between two lines of expert load, 0 for none.

    Raises:
        ConfigError: see `Variable.read`.
    """
    steps = LOAD_LOG_STEPS.read()
    return DEFAULT_STEPS if steps is None else steps


def load_file() -> Path | None:
    """The file that expert load is written to, None for none.

    Raises:
        ConfigError: see `Variable.read`.
    """
    name = LOAD_FILE.read()
    return None if name is None else Path(name).expanduser()


def hccl_buffsize() -> int:
    """MB of one half of a window, as the environment has it.

    Raises:
        ConfigError: see `Variable.read`.
    """
    return BUFFSIZE.read() or DEFAULT_MB


def kernels_from_environment() -> Literal["on", "off"]:
    """Whether the twin may make kernels for this processor.

    Raises:
        ConfigError: see `Variable.read`.
    """
    return "off" if KERNELS.read() == "off" else "on"


def cache_folder() -> Path:
    """The folder of what is kept between processes; it may not exist yet."""
    return Path(CACHE.read() or CACHE.example).expanduser()
