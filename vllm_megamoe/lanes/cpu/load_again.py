"""Layers without experts, loaded again after vLLM's CPU build has packed their weights and emptied the parameters.

A trainer calls the model's `load_weights` and nothing after it. vLLM's own reload (`reload_weights`) knows how to bring
such a layer back: its parameters as they were built, tensors kept until all have come, the layer processed anew, and
the results put where the old ones are. Here the first tensor that comes for a layer starts that for this layer alone.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from vllm.config import VllmConfig, get_current_vllm_config, set_current_vllm_config
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_processing,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from vllm_megamoe.errors import CheckpointError
from vllm_megamoe.lanes.collected import Collected

_STARTED: "WeakSet[Any]" = WeakSet()
"""Layers of this process that have got a tensor again, and perhaps not all."""

_TORN: "WeakSet[Any]" = WeakSet()
"""Those that did not get all."""

_ENGINES: "WeakKeyDictionary[Any, VllmConfig]" = WeakKeyDictionary()
"""The config of the engine that a layer belongs to."""


def install() -> None:
    """Let every unquantised layer of this process take tensors after it was processed too. A second call does nothing.

    On the classes, because a model builds some layers (its routers) without asking a quantisation for their method.
    """
    for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        process = method.process_weights_after_loading
        if process not in _WRAPPED:
            method.process_weights_after_loading = _wrapped(process)
            _WRAPPED.add(method.process_weights_after_loading)


def loadable_again(method: Any) -> Any:
    """The same for a layer's quantised method. None stays None. Called while the model is built."""
    if method is not None and not isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod):
        method.process_weights_after_loading = MethodType(_wrapped(type(method).process_weights_after_loading), method)
    return method


_WRAPPED: set[Any] = set()
"""Functions that `install` has put in place."""


def _wrapped(process: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        process(self, layer)
        if isinstance(layer, VocabParallelEmbedding):
            _follow(partial(process, self), layer)
        else:
            _take_again(layer)

    return process_weights_after_loading


def check_whole(vllm_config: VllmConfig) -> None:
    """Raise CheckpointError where a layer has got a part of its tensors again, until it gets all of them.

    It goes on with the weights that it had; what came is dropped, because with tensors of a later load it would make a
    weight of two.

    Args:
        vllm_config: of the engine whose layers are asked.
    """
    for layer in [layer for layer in _STARTED if _ENGINES[layer] is vllm_config]:
        _STARTED.discard(layer)
        if get_layerwise_info(layer).can_load() and not _finish(layer):
            _TORN.add(layer)
    torn = [layer for layer in _TORN if _ENGINES[layer] is vllm_config]
    if torn:
        names = ", ".join(sorted(str(getattr(layer, "prefix", type(layer).__name__)) for layer in torn))
        raise CheckpointError(
            f"{names}: loaded again in part; expected all tensors of a layer (q, k and v; gate and up) before the next "
            "step. Load these layers again as a whole."
        )


def _finish(layer: Any) -> bool:
    """Process a layer whose optional tensors did not come; False where others lack too, and the layer is as before."""
    info = get_layerwise_info(layer)
    method = layer.quant_method
    try:
        if isinstance(method, Collected) and method.complete():
            with set_current_vllm_config(_ENGINES[layer]):
                finalize_layerwise_processing(layer, None)
                return True
    finally:
        if info.can_load():
            info.load_numel = 0
            info.loaded_weights.clear()
            finalize_layerwise_processing(layer, None)
            if isinstance(method, Collected):
                method.drop()
    return False


def _take_again(layer: Any) -> None:
    """Put a loader for tensors that come later on every parameter that a checkpoint fills."""
    _TORN.discard(layer)
    filled, _ = get_layerwise_info(layer).restore_metadata
    for name, built in filled.items():
        if layer._parameters.get(name) is None:
            gone = torch.nn.Parameter(torch.empty(0, dtype=built.dtype), requires_grad=False)
            layer.register_parameter(name, gone)
    for name, param in layer._parameters.items():
        if param is not None and (name in filled or name in SKIP_TENSORS) and not hasattr(param, "name_in_layer"):
            param.first_loader = getattr(param, "weight_loader", default_weight_loader)
            param.name_in_layer = name
            # A method of the layer: vLLM copies parameters, and knows how to cut such a reference out of them.
            param.weight_loader = MethodType(_load, layer)
    if layer not in _ENGINES:
        _ENGINES[layer] = get_current_vllm_config()


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
        _start(layer)
    target = getattr(layer, name)
    return target.weight_loader(target, loaded_weight, *args, **named)


def _start(layer: Any) -> None:
    """Let vLLM bring back a layer as it was built, to keep tensors until it is whole, and then to process it."""
    initialize_layerwise_reload(layer)
    _STARTED.add(layer)
    for param in layer._parameters.values():
        if param is not None:
            param.weight_loader = _kept(layer, param.weight_loader)


def _kept(layer: Any, keep: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's loader that keeps a tensor, made to keep a copy: the caller may write into its memory before the end."""

    @wraps(keep)
    def load(param: Any, loaded_weight: Tensor, *args: Any, **named: Any) -> Any:
        with set_current_vllm_config(_ENGINES[layer]):
            result = keep(param, loaded_weight.detach().clone(), *args, **named)
            info, method = get_layerwise_info(layer), layer.quant_method
            # vLLM counts numbers that arrive; these are counted when their projection is read.
            if info.can_load() and isinstance(method, Collected) and method.whole():
                finalize_layerwise_processing(layer, None)
            if not info.can_load():
                _tell_attention(_ENGINES[layer], layer)
        return result

    return load


def _tell_attention(vllm_config: VllmConfig, linear: Any) -> None:
    """Latent attention keeps matrices that it has made from a linear's weight."""
    for attention in vllm_config.compilation_config.static_forward_context.values():
        if getattr(attention, "kv_b_proj", None) is linear:
            attention.process_weights_after_loading(vllm_config.model_config.dtype)
