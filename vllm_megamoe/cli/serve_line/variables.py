"""Environment variables that a line needs, known once the plan is."""

from dataclasses import replace

from vllm_megamoe.cli.serve_line.line import ServeLine
from vllm_megamoe.cli.serve_line.step import Step
from vllm_megamoe.profiles.window_size import BUFFSIZE_VARIABLE, DEFAULT_MB

PLUGINS = "VLLM_PLUGINS"
PLUGIN = "megamoe"


def correct_variables(line: ServeLine, hccl_buffsize_mb: int | None) -> tuple[ServeLine, list[Step]]:
    """Set what is missing or too small in front of the command.

    Args:
        hccl_buffsize_mb: what the plan needs, None where the operator allocates for itself.
    """
    steps: list[Step] = []
    line, found = _hccl(line, hccl_buffsize_mb)
    steps += found
    line, found = _plugins(line)
    return line, [*steps, *found]


def set_variable(line: ServeLine, name: str, value: str) -> ServeLine:
    """The line with the variable set, in its old place or at the end of the assignments."""
    environment = dict(line.environment) | {name: value}
    return replace(line, environment=tuple(environment.items()))


def hccl_value(needed: int) -> int:
    """What to set HCCL_BUFFSIZE to: never below HCCL's own default, which every other communicator relies on."""
    return max(needed, DEFAULT_MB)


def _hccl(line: ServeLine, needed: int | None) -> tuple[ServeLine, list[Step]]:
    given = line.variable(BUFFSIZE_VARIABLE)
    if needed is None or (given is not None and given.isdecimal() and int(given) >= needed):
        return line, []
    why = f"Each half of the communicator's window must hold {needed} MB; "
    if given is None:
        why += f"it is not set ({DEFAULT_MB} is HCCL's default)."
    else:
        why += f"{given!r} is {'too small' if given.isdecimal() else 'no number'}."
    value = str(hccl_value(needed))
    return set_variable(line, BUFFSIZE_VARIABLE, value), [
        Step(action="set", what=f"{BUFFSIZE_VARIABLE}={value}", why=why)
    ]


def _plugins(line: ServeLine) -> tuple[ServeLine, list[Step]]:
    given = line.variable(PLUGINS)
    if given is None or PLUGIN in given.split(","):
        return line, []
    value = ",".join([*filter(None, given.split(",")), PLUGIN])
    why = "vLLM loads only the plugins that this variable names."
    return set_variable(line, PLUGINS, value), [Step(action="set", what=f"{PLUGINS}={value}", why=why)]
