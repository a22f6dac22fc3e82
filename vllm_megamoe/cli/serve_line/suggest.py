"""What follows from a plan: the environment variables that a line needs, and a whole line where none was given."""

import json
from dataclasses import replace

from vllm_megamoe.cli.request import Place
from vllm_megamoe.cli.serve_line.line import Flag, ServeLine, Step, json_flag, make_flag, put
from vllm_megamoe.environment import BUFFSIZE_VARIABLE, DEFAULT_MB
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.fit import Fit
from vllm_megamoe.plan.options import KEY, Options

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


def suggest_line(
    model: str,
    engine: EngineFacts,
    options: Options,
    model_dtype: str,
    hccl_buffsize_mb: int | None,
    draft: bool = False,
) -> ServeLine:
    """The line that starts what was planned; it names all that the plan depends on."""
    flags = [make_flag("quantization", KEY)]
    for name, size in (("tensor", engine.tensor_parallel), ("data", engine.data_parallel)):
        if size > 1:
            flags.append(make_flag(f"{name}-parallel-size", str(size)))
    if engine.expert_parallel:
        flags.append(make_flag("enable-expert-parallel"))
    flags.append(make_flag("max-num-batched-tokens", str(engine.max_num_batched_tokens)))
    if engine.dtype != model_dtype:
        flags.append(make_flag("dtype", engine.dtype))
    if draft:
        flags.append(make_flag("speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1})))
    flags += _options(options)
    environment = () if hccl_buffsize_mb is None else ((BUFFSIZE_VARIABLE, str(hccl_value(hccl_buffsize_mb))),)
    return ServeLine(environment, (), ("vllm", "serve"), model, tuple(flags))


def add_place(line: ServeLine, place: Place, lowered: Fit | None) -> ServeLine:
    """The line with the memory settings that were given, and with the length that was lowered to what fits."""
    length = place.max_model_len if lowered is None else lowered.serving.max_model_len
    given = {
        "max-model-len": length,
        "gpu-memory-utilization": place.memory_utilization,
        "max-num-seqs": place.max_num_seqs,
        "kv-cache-dtype": place.kv_cache_dtype,
    }
    flags = line.flags
    for name, value in given.items():
        if value is not None:
            flags = put(flags, make_flag(name, f"{value:g}" if isinstance(value, float) else str(value)))
    return replace(line, flags=flags)


def _options(options: Options) -> list[Flag]:
    chosen = options.model_dump(exclude_defaults=True)
    if options.chosen_profile != "none":
        # The environment of the host that serves may name another one.
        chosen = {"profile": options.chosen_profile, **chosen}
    return [json_flag("additional-config", {KEY: chosen})] if chosen else []
