"""Which profile holds where nobody named one, and which product is simulated.

HCCL_BUFFSIZE: the size of one half of every communicator's window on A2 and A3.
"""

import os

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import find_profile

PROFILE_VARIABLE = "VLLM_MEGAMOE_PROFILE"
SIMULATE_VARIABLE = "VLLM_MEGAMOE_SIMULATE"


def profile_from_environment() -> str:
    """The profile that the environment names or simulates, else `none`.

    Raises:
        ConfigError: see `choose_profile`.
    """
    return choose_profile(None)


def choose_profile(named: str | None) -> str:
    """The profile that holds: the one named, else the environment's, else `none`; under simulation the simulated one.

    Raises:
        ConfigError: another profile is named than the one that is simulated, or the simulated one does not exist.
    """
    expected = named or os.environ.get(PROFILE_VARIABLE) or ""
    simulated = simulated_profile()
    if not simulated:
        return expected or "none"
    if expected not in ("", simulated):
        raise ConfigError(
            f"profile={expected!r} with {SIMULATE_VARIABLE}={simulated!r}; expected one of them, or the same in both: "
            f"a simulated product has its own limits. Drop the profile, or unset {SIMULATE_VARIABLE}."
        )
    return simulated


def simulated_profile() -> str:
    """The product and revision that VLLM_MEGAMOE_SIMULATE names, empty when nothing is simulated.

    Raises:
        ConfigError: no such product.
    """
    name = os.environ.get(SIMULATE_VARIABLE) or ""
    if name and find_profile(name).product == "none":
        raise ConfigError(f"{SIMULATE_VARIABLE}={name!r}; expected a product such as 'a3@9.1', or the variable unset.")
    return name


BUFFSIZE_VARIABLE = "HCCL_BUFFSIZE"
DEFAULT_MB = 200
"""HCCL's own default (operator facts, section 3.1; torch_api.txt sets the same in its example)."""


def hccl_buffsize() -> int:
    """MB of one half, as the environment has it.

    Raises:
        ConfigError: it is no positive whole number.
    """
    text = os.environ.get(BUFFSIZE_VARIABLE) or str(DEFAULT_MB)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{BUFFSIZE_VARIABLE}={text!r}; expected a number of MB from 1 on, such as {DEFAULT_MB}.")
    return int(text)
