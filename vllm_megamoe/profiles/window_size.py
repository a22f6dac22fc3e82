"""HCCL_BUFFSIZE: the size of one half of every communicator's window on A2 and A3."""

import os

from vllm_megamoe.errors import ConfigError

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
        raise ConfigError(f"{BUFFSIZE_VARIABLE}={text!r}; wanted a number of MB from 1 on, such as {DEFAULT_MB}.")
    return int(text)
