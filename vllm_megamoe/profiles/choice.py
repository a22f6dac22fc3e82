"""Which profile holds where nobody named one."""

import os

PROFILE_VARIABLE = "VLLM_MEGAMOE_PROFILE"


def profile_from_environment() -> str:
    """The profile that the environment names, else `none`."""
    return os.environ.get(PROFILE_VARIABLE) or "none"
