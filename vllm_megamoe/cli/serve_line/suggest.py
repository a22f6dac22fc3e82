"""The `vllm serve` line of a plan that was made from sizes and options."""

import json

from vllm_megamoe.cli.serve_line.line import Flag, ServeLine
from vllm_megamoe.cli.serve_line.variables import hccl_value
from vllm_megamoe.cli.serve_line.write import config_flag, make_flag
from vllm_megamoe.plan.facts import EngineFacts
from vllm_megamoe.plan.options import KEY, Options
from vllm_megamoe.profiles.window_size import BUFFSIZE_VARIABLE


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


def _options(options: Options) -> list[Flag]:
    chosen = options.model_dump(exclude_defaults=True)
    if options.chosen_profile != "none":
        # The environment of the host that serves may name another one.
        chosen = {"profile": options.chosen_profile, **chosen}
    return [config_flag({KEY: chosen})] if chosen else []
