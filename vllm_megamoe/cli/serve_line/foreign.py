"""What a line holds for another way of serving experts: dropped with its reason, or named as kept.

Sources: vLLM 0.32 (config/model.py, platforms/interface.py, config/kernel.py), and vllm-ascend 0.30.0rc2's
ascend_config.py for the keys of `--additional-config`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm_megamoe.cli.serve_line.flags import is_known, releases
from vllm_megamoe.cli.serve_line.line import Flag, ServeLine, Step, json_flag, put, without
from vllm_megamoe.plan.options import KEY, misplaced

_BACKEND = "The operator is the experts' backend; another one would build the layers for itself."
_EXCHANGE = "The operator moves the rows itself; vLLM's own exchange is never called."
_MOVES = 'The megamoe option "expert_placement" says where experts stand, redundant ones too.'
_NOT_OURS = ("expert_map_path", "num_redundant_experts")
"""Keys of `eplb_config` that the Ascend lane rejects (lanes/ascend/config_stage.py); its dynamic_eplb it takes."""

DROPPED_ON_CPU: Mapping[str, str] = {
    "enable-sleep-mode": "vLLM's CPU platform rejects sleep mode; for an NPU (--profile a3@9.1, say) it stays.",
    "sleep-mode-offload-cudagraph": "It belongs to sleep mode.",
    "sleep-preserve-parameter-names": "It belongs to sleep mode.",
}
"""Flag -> why it goes where no NPU is planned for."""

DROPPED: Mapping[str, str] = {
    "moe-backend": _BACKEND,
    "all2all-backend": _EXCHANGE,
    "enable-elastic-ep": "The operator's communicator keeps its size while the engine runs.",
    "elastic-ep-max-dp-size": "The operator's communicator keeps its size while the engine runs.",
}
"""Flag -> why it goes."""

_AS_WITHOUT = {"moe-backend": "auto", "all2all-backend": "allgather_reducescatter"}
"""Values that mean the same as no flag at all."""

DROPPED_KEYS: Mapping[str, str] = {
    "enable_fused_mc2": "vllm-ascend's switch of its own fused operator; --quantization megamoe takes its place.",
    "mega_moe_max_tokens": (
        "vllm-ascend's bound of received rows; that of the megamoe options is max_recv_token_num, whose 0 makes room "
        "for all that can come."
    ),
    "multistream_overlap_shared_expert": (
        "Shared experts on a second stream and a fused operator have blocked each other (vllm-ascend #12237)."
    ),
    "expert_map_path": _MOVES,
    "dynamic_eplb": _MOVES,
    "eplb_config": _MOVES,
    "expert_map_record_path": _MOVES,
    "init_redundancy_expert": _MOVES,
    "num_iterations_eplb_update": _MOVES,
    "num_wait_worker_iterations": _MOVES,
    "gate_eplb": _MOVES,
}
"""Key of `--additional-config` -> why it goes."""

DROPPED_VARIABLES: Mapping[str, str] = {
    "VLLM_ASCEND_ENABLE_FUSED_MC2": DROPPED_KEYS["enable_fused_mc2"],
}

NOT_READ: Mapping[str, str] = {
    "quantization-config": "what it quantises while loading is not part of this plan.",
    "model-impl": "this plan is for vLLM's own class of the model.",
    "config-format": "this plan reads config.json.",
    "code-revision": "this plan reads the files that it was given.",
    "revision": "this plan reads the files that it was given.",
    "cpu-offload-gb": "weights that it moves to the host are counted on the device.",
    "offload-backend": "weights that it moves to the host are counted on the device.",
    "kv-cache-memory-bytes": "the cache is planned with what --gpu-memory-utilization leaves.",
    "num-gpu-blocks-override": "the cache is planned with what --gpu-memory-utilization leaves.",
}
"""Flag that can change the model's facts -> what the plan does instead of reading it."""


def drop_foreign(line: ServeLine, *, npu: bool) -> tuple[ServeLine, list[Step]]:
    """Drop what another way of serving experts needs, and flags that no vLLM has.

    Args:
        line: as the user wrote it.
        npu: whether the plan is for one.
    """
    steps: list[Step] = []
    kept: list[Flag] = []
    for flag in line.flags:
        why = _why_not(flag, npu=npu)
        if why:
            steps.append(Step(action="drop", what=" ".join(flag.words), why=why))
        else:
            kept.append(flag)
    line = replace(line, flags=tuple(kept))
    line, found = _keys(line, npu=npu)
    steps += found
    for change in (_nested_backends, _variables):
        line, found = change(line)
        steps += found
    return line, steps


def not_read(line: ServeLine) -> list[str]:
    """Sentences about flags and keys that stay in the line and are not read."""
    said = [f"--{name} {line.value(name)} is not read: {why}" for name, why in NOT_READ.items() if line.value(name)]
    others = sorted(
        key
        for key, value in line.additional_config().items()
        if key != KEY and key not in DROPPED_KEYS and not any(misplaced(key, value))  # those are violations
    )
    if others:
        said.append(f"--additional-config: {', '.join(others)}: not read here, they stay for the platform that does.")
    if line.switch("language-model-only"):
        said.append("--language-model-only is not read: the vision tower is counted.")
    chunked = line.switch("enable-chunked-prefill")
    if chunked is False and line.value("max-num-batched-tokens") is None:
        said.append("--no-enable-chunked-prefill raises the rows of a step: give --max-num-batched-tokens.")
    return said


def _why_not(flag: Flag, *, npu: bool) -> str:
    if flag.name in _AS_WITHOUT and flag.values[:1] == (_AS_WITHOUT[flag.name],):
        return ""
    dropped = DROPPED if npu else {**DROPPED, **DROPPED_ON_CPU}
    if flag.name in dropped:
        return dropped[flag.name]
    if not is_known(flag.name):
        return f"No flag of vLLM {' or '.join(releases())}: it would stop there."
    return ""


def _keys(line: ServeLine, *, npu: bool) -> tuple[ServeLine, list[Step]]:
    config = line.additional_config()
    balancing = config.get("eplb_config") if npu else None
    kept = {"eplb_config"} if isinstance(balancing, Mapping) else set()
    gone = [key for key in config if key in DROPPED_KEYS and key not in kept]
    left = {key: value for key, value in config.items() if key not in gone}
    steps = [
        Step(action="drop", what=f"--additional-config {key} ({config[key]!r})", why=DROPPED_KEYS[key]) for key in gone
    ]
    for key in _NOT_OURS:
        if isinstance(balancing, Mapping) and balancing.get(key):
            gone.append(key)
            steps.append(
                Step(action="drop", what=f"--additional-config eplb_config.{key} ({balancing[key]!r})", why=_MOVES)
            )
            left["eplb_config"] = {name: value for name, value in left["eplb_config"].items() if name != key}
    return (_with_json(line, "additional-config", left) if gone else line), steps


def _nested_backends(line: ServeLine) -> tuple[ServeLine, list[Step]]:
    """`moe_backend` within the JSON of other flags."""
    steps = []
    for name in ("kernel-config", "speculative-config"):
        config = line.json(name) or {}
        if config.get("moe_backend") in (None, "auto"):
            continue
        steps.append(Step(action="drop", what=f"--{name} moe_backend ({config['moe_backend']!r})", why=_BACKEND))
        line = _with_json(line, name, {key: value for key, value in config.items() if key != "moe_backend"})
    return line, steps


def _variables(line: ServeLine) -> tuple[ServeLine, list[Step]]:
    gone = [(name, value) for name, value in line.environment if name in DROPPED_VARIABLES]
    kept = tuple(each for each in line.environment if each not in gone)
    steps = [Step(action="drop", what=f"{name}={value}", why=DROPPED_VARIABLES[name]) for name, value in gone]
    return replace(line, environment=kept), steps


def _with_json(line: ServeLine, name: str, config: dict[str, Any]) -> ServeLine:
    """The line with this object under a flag, without the flag for an empty one."""
    flags = put(line.flags, json_flag(name, config)) if config else without(line.flags, name)
    return replace(line, flags=flags)
