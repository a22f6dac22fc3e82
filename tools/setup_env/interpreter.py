"""Which Python the environment is made with."""

from __future__ import annotations

import shutil
import subprocess
import sys

from tools.setup_env.say import SetupError

OLDEST = (3, 11)
LOCKED_FOR = "3.11"


def choose() -> str:
    """Return the interpreter to make the environment with: this one if it is 3.11, else a python3.11 on PATH.

    A newer one than 3.11 is taken when there is no 3.11. SetupError when there is nothing of 3.11 or newer.
    """
    current = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if current == LOCKED_FOR:
        return sys.executable
    other = shutil.which(f"python{LOCKED_FOR}")
    if other is not None:
        return other
    if sys.version_info[:2] >= OLDEST:
        return sys.executable
    raise SetupError(
        f"Python {LOCKED_FOR} or newer is needed, this is {current} ({sys.executable}) and there is no "
        f"python{LOCKED_FOR} on PATH; install it, or name one with `make PYTHON=/path/to/python{LOCKED_FOR} ...`"
    )


def works(python: str) -> bool:
    """Whether an environment's Python starts and is new enough."""
    code = f"import sys; sys.exit(sys.version_info[:2] < {OLDEST!r})"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
