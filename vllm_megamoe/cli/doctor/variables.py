"""Checks of environment variables: ours, HCCL's and vLLM's."""

import difflib
from collections.abc import Callable, Iterator

from vllm_megamoe.cli.doctor.environment import Check, Environment
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.profiles.profile import PROFILE_NAMES, find_profile

PREFIX = "VLLM_MEGAMOE_"


def _profile(text: str) -> str:
    try:
        find_profile(text)
    except ConfigError as error:
        return str(error)
    return ""


def _product(text: str) -> str:
    expected = ", ".join(name for name in PROFILE_NAMES if name != "none")
    return "" if text in PROFILE_NAMES[1:] else f"Set one of {expected}, or unset it."


def _seconds(text: str) -> str:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    return "" if seconds > 0 else "Set a number of seconds above 0, or unset it."


def _steps(text: str) -> str:
    return "" if text.isdecimal() else "Set a whole number of steps, or unset it."


def _anything(text: str) -> str:
    return ""


KNOWN: dict[str, Callable[[str], str]] = {
    "VLLM_MEGAMOE_PROFILE": _profile,
    "VLLM_MEGAMOE_SIMULATE": _product,
    "VLLM_MEGAMOE_TIMEOUT_S": _seconds,
    "VLLM_MEGAMOE_LOAD_LOG_STEPS": _steps,
    "VLLM_MEGAMOE_SIMULATED_NPU": _anything,
    "VLLM_MEGAMOE_SHARED": _anything,
}
"""Our variables -> what is wrong with a value, empty for nothing. The last two are for our tests."""


def ours(env: Environment) -> Iterator[Check]:
    """Every variable that begins with VLLM_MEGAMOE_ must be one that we read, with a value that we take."""
    for name, value in sorted(env.variables.items()):
        if not name.startswith(PREFIX):
            continue
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            meant = f"Did you mean {near[0]}? " if near else ""
            yield Check(name=name, state="wrong", found=repr(value), remedy=f"{meant}Known: {', '.join(KNOWN)}.")
            continue
        wrong = KNOWN[name](value) if value else ""
        yield Check(name=name, state="wrong" if wrong else "ok", found=repr(value), remedy=wrong)


def hccl(env: Environment) -> Iterator[Check]:
    """HCCL_BUFFSIZE, MB of one half of a communicator's window on A2 and A3."""
    value = env.variables.get("HCCL_BUFFSIZE")
    if value is None:
        if env.is_ascend:
            text = "not set; `vllm-megamoe plan MODEL` says what A2 and A3 need"
            yield Check(name="HCCL_BUFFSIZE", state="note", found=text)
    elif value.isdecimal() and int(value) > 0:
        yield Check(name="HCCL_BUFFSIZE", state="ok", found=f"{value} MB")
    else:
        yield Check(name="HCCL_BUFFSIZE", state="wrong", found=repr(value), remedy="export HCCL_BUFFSIZE=<whole MB>")


def plugins(env: Environment) -> Iterator[Check]:
    """VLLM_PLUGINS, where it is set, lists all plugins that vLLM may load."""
    value = env.variables.get("VLLM_PLUGINS")
    if value is None:
        return
    names = [name for name in value.split(",") if name]
    if "megamoe" in names:
        yield Check(name="VLLM_PLUGINS", state="ok", found=value)
    else:
        remedy = f"export VLLM_PLUGINS={','.join([*names, 'megamoe'])}"
        yield Check(name="VLLM_PLUGINS", state="wrong", found=f"{value!r} leaves megamoe out", remedy=remedy)
