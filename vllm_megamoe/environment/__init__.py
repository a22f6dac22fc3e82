"""The environment's values: each is read when it is needed, never at import, and an empty one counts as unset.

`variables` has their names. `wrong_variables` looks at all of them at once, so that the config stage can reject a bad
one before a weight is read.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from vllm_megamoe.environment.variables import (
    BUFFSIZE,
    BUFFSIZE_VARIABLE,
    CACHE,
    DEFAULT_MB,
    DEFAULT_STEPS,
    DEFAULT_TIMEOUT_S,
    DEVIATION_NAMES,
    DEVIATIONS,
    FIRST_CALL_TIMEOUT_S,
    KERNELS,
    LOAD_FILE,
    LOAD_LOG_STEPS,
    PREFIX,
    PRODUCTS,
    PROFILE,
    PROFILE_VARIABLE,
    SHARED,
    SIMULATE,
    SIMULATE_VARIABLE,
    SIMULATED_NPU,
    TIMEOUT,
    UNTESTED,
    VARIABLES,
    Variable,
    is_timeout,
)
from vllm_megamoe.errors import ConfigError

__all__ = [
    "BUFFSIZE",
    "BUFFSIZE_VARIABLE",
    "CACHE",
    "DEFAULT_MB",
    "DEFAULT_STEPS",
    "DEFAULT_TIMEOUT_S",
    "DEVIATIONS",
    "DEVIATION_NAMES",
    "FIRST_CALL_TIMEOUT_S",
    "KERNELS",
    "LOAD_FILE",
    "LOAD_LOG_STEPS",
    "PREFIX",
    "PRODUCTS",
    "PROFILE",
    "PROFILE_VARIABLE",
    "SHARED",
    "SIMULATE",
    "SIMULATED_NPU",
    "SIMULATE_VARIABLE",
    "TIMEOUT",
    "UNTESTED",
    "VARIABLES",
    "Variable",
    "as_set_before",
    "cache_folder",
    "choose_profile",
    "given_timeout_s",
    "hccl_buffsize",
    "is_timeout",
    "kernels_from_environment",
    "load_file",
    "load_log_steps",
    "profile_from_environment",
    "simulated_profile",
    "wrong_variables",
]


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
