"""Bring a command line to what `--quantization megamoe` needs, each change with its reason.

Sizes that were given beside the line win over those of the line, as the megamoe options do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_megamoe.cli.request import Request
from vllm_megamoe.cli.serve_line.engine import FEATURES
from vllm_megamoe.cli.serve_line.foreign import drop_foreign
from vllm_megamoe.cli.serve_line.line import ServeLine, Step, json_flag, make_flag, put, without
from vllm_megamoe.environment import as_set_before, choose_profile
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.options import KEY


def set_given(line: ServeLine, request: Request) -> tuple[ServeLine, list[Step]]:
    """The line with `--tp`, `--dp`, `--max-num-batched-tokens` and `--dtype` of the request in it."""
    given = {
        "tensor-parallel-size": request.tensor_parallel,
        "data-parallel-size": request.data_parallel,
        "max-num-batched-tokens": request.max_num_batched_tokens,
        "dtype": None if request.dtype == "auto" else request.dtype,
    }
    steps = []
    for name, value in given.items():
        found = line.value(name)
        if value is None or found == str(value):
            continue
        line = replace(line, flags=put(line.flags, make_flag(name, str(value))))
        why = "It was given beside the line" + ("." if found is None else f", which says {found}.")
        steps.append(Step(action="add" if found is None else "set", what=f"--{name} {value}", why=why))
    return line, steps


_Change = tuple[ServeLine, list[Step]]

_WHY_NOT = {
    "eplb": "Load balancing moves experts; the operator keeps them as they were loaded.",
    "dual_batch_overlap": "The operator overlaps communication and computation itself, one batch at a time.",
}

# Flags that mean nothing without the feature (vLLM 0.32, EngineArgs), as the beginning of a name.
_GO_WITH = {
    "eplb": ("eplb-",),
    "dual_batch_overlap": ("dbo-",),
}


def correct_line(
    line: ServeLine, engine: EngineFacts, options: Mapping[str, Any], before: Sequence[Step] = ()
) -> _Change:
    """Change the flags.

    Args:
        line: as the user wrote it.
        engine: what it says.
        options: megamoe options that were given beside it; they win over those of the line.
        before: steps that were taken already.

    Returns:
        The corrected line and the steps, in the order drop, add, set.
    """
    line, found = drop_foreign(line, npu=_profile(line, options) != "none")
    steps = [*before, *found]
    if line.config_file:
        why = "Its flags stand in the line, in front of the others, so that each can be changed."
        steps.insert(0, Step(action="drop", what=f"--config {line.config_file}", why=why))
    for change in (_features, _placement, _context_parallel, _quantization, _experts, _rows, _dtype):
        line, found = change(line, engine)
        steps += found
    line, found = _options(line, options)
    return line, sorted([*steps, *found], key=lambda step: ("drop", "add", "set").index(step.action))


def _profile(line: ServeLine, options: Mapping[str, Any]) -> str:
    """The profile that the line is planned for.

    Raises:
        ConfigError: two that differ are named.
    """
    section = line.additional_config().get(KEY)
    named = options.get("profile") or (section.get("profile") if isinstance(section, dict) else None)
    return choose_profile(named if isinstance(named, str) else None, as_set_before(dict(line.environment)))


def _features(line: ServeLine, engine: EngineFacts) -> _Change:
    steps = []
    for field, flag in FEATURES.items():
        if field not in _WHY_NOT or not getattr(engine, field):
            continue
        gone = [each for each in line.flags if each.name == flag or each.name.startswith(_GO_WITH[field])]
        line = replace(line, flags=without(line.flags, *(each.name for each in gone)))
        what = " ".join(word for each in gone for word in each.words)
        steps.append(Step(action="drop", what=what, why=_WHY_NOT[field]))
    return line, steps


def _placement(line: ServeLine, engine: EngineFacts) -> _Change:
    # The operator's experts are contiguous per rank (operator_readme.txt, expert ids of a rank).
    flag = "expert-placement-strategy"
    value = line.value(flag)
    if value in (None, "linear"):
        return line, []
    why = "A rank's experts must be consecutive, which is vLLM's default placement."
    return replace(line, flags=without(line.flags, flag)), [Step(action="drop", what=f"--{flag} {value}", why=why)]


def _context_parallel(line: ServeLine, engine: EngineFacts) -> _Change:
    flag = "prefill-context-parallel-size"
    if engine.prefill_context_parallel == 1:
        return line, []
    what = f"--{flag} {engine.prefill_context_parallel}"
    why = "The operator's communicator is tensor parallel x data parallel."
    return replace(line, flags=without(line.flags, flag)), [Step(action="drop", what=what, why=why)]


def _quantization(line: ServeLine, engine: EngineFacts) -> _Change:
    value = line.value("quantization")
    if value == KEY:
        return line, []
    step = Step(
        action="add" if value is None else "set",
        what=f"--quantization {KEY}",
        why="The operator serves only who asks for it by name."
        if value is None
        else f"It replaces {value!r}; layers without experts keep the checkpoint's own method.",
    )
    return replace(line, flags=put(line.flags, make_flag("quantization", KEY))), [step]


def _experts(line: ServeLine, engine: EngineFacts) -> _Change:
    ranks = engine.tensor_parallel * engine.data_parallel
    if engine.expert_parallel or ranks == 1:
        return line, []
    step = Step(action="add", what="--enable-expert-parallel", why="The operator holds whole experts on every rank.")
    return replace(line, flags=put(line.flags, make_flag("enable-expert-parallel"))), [step]


def _rows(line: ServeLine, engine: EngineFacts) -> _Change:
    """Name the rows of a step where vLLM would choose others than the plan counts (EngineArgs.get_batch_defaults)."""
    flag = "max-num-batched-tokens"
    if line.value(flag) is not None or line.switch("enable-chunked-prefill") is False:
        return line, []  # without chunked prefill they must hold a whole prompt: `foreign.not_read` tells of it
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    if ranks == 1 and line.value("performance-mode") != "throughput":
        return line, []
    rows = str(engine.max_num_batched_tokens)
    why = "The plan counts so many rows a step; vLLM's own number depends on platform, ranks and mode."
    return replace(line, flags=put(line.flags, make_flag(flag, rows))), [
        Step(action="add", what=f"--{flag} {rows}", why=why)
    ]


def _dtype(line: ServeLine, engine: EngineFacts) -> _Change:
    if engine.dtype in ("bfloat16", "float32"):
        # float32 is the twin's; where it is none, the plan's own rule speaks.
        return line, []
    given = line.value("dtype") not in (None, "auto")
    step = Step(
        action="set" if given else "add", what="--dtype bfloat16", why=f"The operator takes no {engine.dtype} rows."
    )
    return replace(line, flags=put(line.flags, make_flag("dtype", "bfloat16"))), [step]


def _options(line: ServeLine, options: Mapping[str, Any]) -> _Change:
    config = line.additional_config()
    section = config.get(KEY, {})
    if not options or not isinstance(section, dict) or {**section, **options} == section:
        return line, []
    merged = {**config, KEY: {**section, **options}}
    # The dotted spellings are in the merged object now.
    line = replace(line, flags=put(line.flags, json_flag("additional-config", merged)))
    step = Step(
        action="set" if config else "add",
        what=f"--additional-config '{json.dumps(merged)}'",
        why="The options that were given beside the line.",
    )
    return line, [step]
