"""Layers without experts, loaded again after vLLM's CPU build has packed their weights and emptied the parameters.

A trainer calls the model's `load_weights` and nothing after it. vLLM's own reload (`reload_weights`) knows how to bring
such a layer back: its parameters as they were built, tensors kept until all have come, the layer processed anew, and
the results put where the old ones are. Here the first tensor that comes for a layer starts that for this layer alone.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from vllm_megamoe.errors import CheckpointError

_STARTED: "WeakSet[Any]" = WeakSet()
"""Layers of this process that have got a tensor again, and perhaps not all."""

_ENGINES: "WeakKeyDictionary[Any, VllmConfig]" = WeakKeyDictionary()
"""The config of the engine that a layer belongs to."""


def loadable_again(method: Any) -> Any:
    """A layer's method whose layer takes tensors after it was processed too. None stays None.

    Called while the model is built.
    """
    if method is not None and not isinstance(method.process_weights_after_loading, partial):
        process = method.process_weights_after_loading
        method.process_weights_after_loading = partial(_process, process, get_current_vllm_config())
    return method


def check_whole() -> None:
    """Raise CheckpointError where a layer has got a part of its tensors again: it still computes with the old ones."""
    halves = [layer for layer in _STARTED if get_layerwise_info(layer).can_load()]
    _STARTED.clear()
    _STARTED.update(halves)
    if halves:
        names = ", ".join(sorted(str(getattr(layer, "prefix", type(layer).__name__)) for layer in halves))
        raise CheckpointError(
            f"{names}: loaded again in part; expected all tensors of a layer (q, k and v; gate and up) before the next "
            "step. Load the rest of them."
        )


def _process(process: Callable[[Any], None], vllm_config: VllmConfig, layer: Any) -> None:
    """What the method does, then a loader for tensors that come later on every parameter that a checkpoint fills."""
    process(layer)
    if isinstance(layer, VocabParallelEmbedding):
        _follow(process, layer)
        return
    filled, _ = get_layerwise_info(layer).restore_metadata
    for name, built in filled.items():
        if layer._parameters.get(name) is None:
            gone = torch.nn.Parameter(torch.empty(0, dtype=built.dtype), requires_grad=False)
            layer.register_parameter(name, gone)
    for name, param in layer._parameters.items():
        if param is not None and (name in filled or name in SKIP_TENSORS):
            param.first_loader = getattr(param, "weight_loader", default_weight_loader)
            param.name_in_layer = name
            # A method of the layer: vLLM copies parameters, and knows how to cut such a reference out of them.
            param.weight_loader = MethodType(_load, layer)
            _ENGINES[layer] = vllm_config


def _follow(process: Callable[[Any], None], layer: Any) -> None:
    """An embedding stays as it is and takes tensors in place; what was packed from it is packed again."""
    param = layer.weight
    loader = getattr(param, "weight_loader", default_weight_loader)

    def load(param: Tensor, loaded_weight: Tensor, *args: Any) -> None:
        loader(param, loaded_weight, *args)
        if not param.is_meta:
            process(layer)

    param.weight_loader = load


def _load(layer: Any, param: Any, loaded_weight: Tensor, *args: Any, **named: Any) -> Any:
    """The loader of a processed layer's parameter."""
    info = get_layerwise_info(layer)
    name = param.name_in_layer
    if info.can_load() and name in SKIP_TENSORS:
        return param.first_loader(param, loaded_weight, *args, **named)
    if not info.can_load():
        initialize_layerwise_reload(layer)
        _STARTED.add(layer)
    target = getattr(layer, name)
    # It is kept until the layer is whole; the caller's memory may be written anew before.
    result = target.weight_loader(target, loaded_weight.detach().clone(), *args, **named)
    if not info.can_load():
        _tell_attention(_ENGINES[layer], layer)
    return result


def _tell_attention(vllm_config: VllmConfig, linear: Any) -> None:
    """Latent attention keeps matrices that it has made from a linear's weight."""
    for attention in vllm_config.compilation_config.static_forward_context.values():
        if getattr(attention, "kv_b_proj", None) is linear:
            attention.process_weights_after_loading(vllm_config.model_config.dtype)
