"""Every environment variable that this package reads (`VARIABLES`): its name, what it is for, and what it takes.

docs/options.md and docs/errors.md are written from here. Variables that belong to vLLM (threads, KV cache) are the
lanes' business.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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
        about: what it is for, for docs/options.md; empty for one that only this package's own tests set.
        default: what holds without it, for the same page.
        parse: text -> value, None where the text is none.
        why: text -> why a value that looks right is none, with a full stop; empty where `expected` says all.
    """

    name: str
    expected: str
    example: str
    about: str
    default: str
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
    # The file is written beside itself and renamed: a device, or a folder, would be lost.
    return text if path.absolute().parent.is_dir() and (path.is_file() or not path.exists()) else None


def _anything(text: str) -> str:
    return text


PROFILE = Variable(
    PROFILE_VARIABLE,
    f"one of {', '.join(PROFILE_NAMES)}",
    "a3@9.1",
    "the profile where no option names one",
    "`none`",
    _profile,
    _why_no_profile,
)
SIMULATE = Variable(
    SIMULATE_VARIABLE,
    f"one of {', '.join(PRODUCTS)}",
    "a3@9.1",
    "run on a simulated product, such as `a3@9.1` ([simulator.md](simulator.md))",
    "no simulation",
    _product,
    _why_no_profile,
)
DEVIATIONS = Variable(
    "VLLM_MEGAMOE_DEVIATIONS",
    f"names of {', '.join(DEVIATION_NAMES)}, with commas",
    "overflow_ends",
    "what the simulated product does wrong on purpose ([simulator.md](simulator.md))",
    "nothing",
    _deviations,
)
TIMEOUT = Variable(
    "VLLM_MEGAMOE_TIMEOUT_S",
    "a number of seconds above 0, at most a year",
    "300",
    "seconds that a rank of the twin waits for the others in a call, in the first one of a buffer too",
    f"{DEFAULT_TIMEOUT_S:g}; {FIRST_CALL_TIMEOUT_S:g} in the first call of a buffer, because another rank may still "
    "load or compile",
    _seconds,
)
LOAD_LOG_STEPS = Variable(
    "VLLM_MEGAMOE_LOAD_LOG_STEPS",
    "a whole number of steps, 0 for no lines",
    "100",
    "steps between two reports of expert load in the log, 0 for none ([balance.md](balance.md))",
    str(DEFAULT_STEPS),
    _whole,
)
LOAD_FILE = Variable(
    "VLLM_MEGAMOE_LOAD_FILE",
    "a file in a folder that exists, no device",
    "load.json",
    "file that rows of every expert are written to",
    "none is written",
    _file,
)
KERNELS = Variable(
    "VLLM_MEGAMOE_KERNELS",
    "on or off",
    "off",
    "`off`: the twin multiplies with torch alone, without the kernels that it makes for this processor",
    "`on`",
    _on_or_off,
)
UNTESTED = Variable(
    "VLLM_MEGAMOE_UNTESTED",
    "on or off",
    "on",
    "`on`: serve with releases of vLLM or vllm-ascend that are not in [compatibility.md](compatibility.md); a line "
    "says so at every start",
    "`off`: they are rejected by name",
    _on_or_off,
)
CACHE = Variable(
    "VLLM_MEGAMOE_CACHE",
    "a folder",
    "~/.cache/vllm-megamoe",
    "folder of what is kept between processes: the twin's kernels",
    "`~/.cache/vllm-megamoe`",
    _anything,
)
SIMULATED_NPU = Variable("VLLM_MEGAMOE_SIMULATED_NPU", f"one of {', '.join(PRODUCTS)}", "a3@9.1", "", "", _product)
"""The product that a simulated torch_npu stands for, in the contract suite."""
SHARED = Variable("VLLM_MEGAMOE_SHARED", "a folder", "../shared", "", "", _anything)
"""Test data beside the clone."""
BUFFSIZE = Variable(
    BUFFSIZE_VARIABLE,
    "a whole number of MB from 1 on",
    str(DEFAULT_MB),
    "HCCL's own: MB of one half of a communicator's window on A2 and A3, the same on all ranks; the plan says the "
    "least",
    str(DEFAULT_MB),
    _positive,
)

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
