"""Checks of environment variables: ours, HCCL's and vLLM's."""

import difflib
from collections.abc import Iterator

from vllm_megamoe.cli.doctor.environment import Check, Environment
from vllm_megamoe.environment import BUFFSIZE, PREFIX, VARIABLES

KNOWN = {name: variable for name, variable in VARIABLES.items() if name.startswith(PREFIX)}
"""Our own variables."""


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
        wrong = KNOWN[name].wrong(value) if value else ""
        yield Check(name=name, state="wrong" if wrong else "ok", found=repr(value), remedy=wrong)


def hccl(env: Environment) -> Iterator[Check]:
    """HCCL_BUFFSIZE, MB of one half of a communicator's window on A2 and A3."""
    value = env.variables.get("HCCL_BUFFSIZE")
    if value is None:
        if env.is_ascend:
            text = "not set; `vllm-megamoe doctor --model MODEL --tp N` says what A2 and A3 need"
            yield Check(name="HCCL_BUFFSIZE", state="note", found=text)
    elif BUFFSIZE.wrong(value):
        yield Check(name="HCCL_BUFFSIZE", state="wrong", found=repr(value), remedy="export HCCL_BUFFSIZE=<whole MB>")
    else:
        yield Check(name="HCCL_BUFFSIZE", state="ok", found=f"{value} MB")


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
