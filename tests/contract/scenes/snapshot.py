"""What vllm and vllm-ascend are in this process once all plugins are loaded and a worker has come up, as plain data.

Taken with and without our plugin, the two snapshots say what we change for those who do not use us.
"""

import dataclasses
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from contract.support import engine
from contract.support.rank import Rank

MODEL_VARIABLE = "CONTRACT_MODEL"
ROOTS = ("vllm", "vllm_ascend")
OPTIONS: dict[str, dict[str, Any]] = {
    "off": {},
    "legacy": {"enable_fused_mc2": 1},
    "megamoe": {"enable_fused_mc2": 2, "mega_moe_max_tokens": 4096},
}


def run(rank: Rank) -> dict[str, Any]:
    """Registries, selectors, configs, one layer's classes, and where each function of both packages was written."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    answer: dict[str, Any] = {"configs": {}}
    # The same path for all snapshots that are compared: a config's hash has it.
    folder = engine.Model().write(Path(os.environ[MODEL_VARIABLE]))
    for name, options in OPTIONS.items():
        config = engine.make_config(folder, additional_config=dict(options))
        answer["configs"][name] = _config(config)
    alone = engine.make_config(folder, additional_config={}, tensor_parallel_size=1, distributed_executor_backend=None)
    engine.start_worker(alone, 0, rank.meeting_point)
    block = engine.build_block(alone)
    engine.finish_loading(alone, block)
    experts = block.experts.routed_experts
    answer["layer"] = {
        "classes": [_name(type(each)) for each in (block, block.experts, experts, experts.quant_method)],
        "attributes": sorted(set(vars(experts)) | set(vars(experts.quant_method))),
        "parameters": {name: list(parameter.shape) for name, parameter in block.named_parameters()},
    }
    return answer | _tables() | {"functions": dict(sorted(_functions()))}


def _config(config: Any) -> dict[str, Any]:
    from vllm_ascend.ascend_config import get_ascend_config, is_mega_moe_supported

    ascend = get_ascend_config()
    return {
        "hash": config.compute_hash(),
        "quantization": config.model_config.quantization,
        "additional_config": dict(config.additional_config),
        "worker": config.parallel_config.worker_cls,
        "parallel": {key: repr(value) for key, value in sorted(vars(config.parallel_config).items()) if _stable(key)},
        "scheduler": {key: repr(value) for key, value in sorted(vars(config.scheduler_config).items())},
        "compilation": repr(config.compilation_config.custom_ops),
        "ascend": {each.name: repr(getattr(ascend, each.name)) for each in dataclasses.fields(ascend)},
        "mega_moe_supported": is_mega_moe_supported(),
    }


def _stable(key: str) -> bool:
    """Whether a field of the parallel config has one value for one command line; ports and instance ids have not."""
    return "port" not in key and "instance" not in key and not key.startswith("_")


def _tables() -> dict[str, Any]:
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
    from vllm.platforms import current_platform
    from vllm_ascend.ascend_forward_context import _MOE_COMM_SELECTORS
    from vllm_ascend.quantization.methods import registry

    return {
        "selectors": {policy.name: _name(function) for policy, function in _MOE_COMM_SELECTORS.items()},
        "quantisation": {name: _name(get_quantization_config(name)) for name in sorted(QUANTIZATION_METHODS)},
        "quantisation order": list(QUANTIZATION_METHODS),
        "supported quantisation": list(current_platform.supported_quantization),
        "schemes": {repr(key): _name(value) for key, value in registry._SCHEME_REGISTRY.items()},
        "platform": _name(type(current_platform)),
        "classes out of tree": {name: _name(found) for name, found in sorted(op_registry_oot.items())},
        "patches": sorted(name for name in sys.modules if name.startswith("vllm_ascend.patch.")),
        "product": os.environ["VLLM_MEGAMOE_SIMULATED_NPU"],
    }


def _functions() -> Iterator[tuple[str, str]]:
    """(full name, file and line) of every function that modules of both packages and their classes hold."""
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] not in ROOTS or module is None:
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, FunctionType):
                yield f"{name}.{key}", _place(value)
            elif inspect.isclass(value) and value.__module__ == name:
                for member, held in list(vars(value).items()):
                    function = inspect.unwrap(getattr(held, "__func__", held), stop=lambda f: True)
                    if isinstance(function, FunctionType):
                        yield f"{name}.{key}.{member}", _place(function)


def _place(function: FunctionType) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
