"""LoRA adapters beside the operator: every layer but the routed experts takes them, an adapter of experts is rejected.

vLLM wraps each module that it calls supported in a class with room for adapters, a MoE layer too, whose kernels would
then have to read adapters. Ours cannot: experts are operands. So they are no supported module here, and an adapter that
has tensors for them is rejected by their names, before one of its tensors is read.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_megamoe.checkpoint.headers import read_headers
from vllm_megamoe.errors import ConfigError
from vllm_megamoe.plan.rules import is_expert_module

_MARK = "_vllm_megamoe_wrapped"


def install() -> None:
    """Leave our experts out of what adapters may patch, in this worker; a second call does nothing."""
    from vllm.lora import model_manager, worker_manager

    if getattr(model_manager, _MARK, False):
        return
    setattr(model_manager, _MARK, True)
    model_manager.get_supported_lora_modules = _without_experts(model_manager.get_supported_lora_modules)
    for manager in (worker_manager.WorkerLoRAManager, worker_manager.LRUCacheWorkerLoRAManager):
        if "_load_adapter" in vars(manager):
            manager._load_adapter = _rejecting(manager._load_adapter)


def _without_experts(supported: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    @functools.wraps(supported)
    def names(model: Any) -> list[str]:
        ours = _suffixes_of_ours(model)
        return [name for name in supported(model) if name not in ours]

    return names


def _suffixes_of_ours(model: Any) -> set[str]:
    """The last parts of the names of MoE layers that the operator runs (`experts`)."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    from vllm_megamoe.lanes.moe_method import MegaMoeMethod

    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, MoERunner) and isinstance(module.routed_experts.quant_method, MegaMoeMethod)
    }


def _rejecting(load: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(load)
    def checked(self: Any, lora_request: Any) -> Any:
        from vllm.lora.utils import get_adapter_absolute_path

        if _suffixes_of_ours(self._adapter_manager.model):
            check_adapter(lora_request.lora_name, Path(get_adapter_absolute_path(lora_request.lora_path)))
        return load(self, lora_request)

    return checked


def check_adapter(name: str, folder: Path) -> None:
    """Look at the names of an adapter's tensors.

    Args:
        name: of the adapter, for the message.
        folder: with its adapter_model.safetensors; other files are vLLM's to read, whose own check then speaks.

    Raises:
        ConfigError: some belong to routed experts.
    """
    if not (folder / "adapter_model.safetensors").is_file():
        return
    experts = [tensor for tensor in read_headers(folder).entries if is_expert_module(tensor)]
    if experts:
        raise ConfigError(
            f"LoRA adapter {name!r} ({folder}): {len(experts)} tensors of routed experts, such as {experts[0]}; "
            "expected adapters of other layers: the operator holds the experts as they were loaded. Train it without "
            "experts, merge them into the checkpoint, or serve without --quantization megamoe."
        )
