"""The one opaque custom op that a compiled model sees for a whole MoE layer.

vLLM traces a CPU model once, with guards dropped: whatever depends on the number of rows or on the rank must be hidden
from the trace, or the values of the warm-up are baked into it and ranks part ways at the first odd batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_megamoe.method.layer_state import LayerState

_find: Callable[[str], LayerState] | None = None


def set_finder(find: Callable[[str], LayerState]) -> None:
    """Tell the op how to get a layer by its name; the lane knows where the running engine keeps them."""
    global _find
    _find = find


@torch.library.custom_op("vllm_megamoe::moe_layer", mutates_args=())
def moe_layer(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, layer_name: str) -> Tensor:
    """x [T, H], topk_ids [T, K], topk_weights [T, K] -> y [T, H], complete on every rank that brought these rows."""
    if _find is None:
        raise RuntimeError("vllm_megamoe.plugin.register() has not run in this process")
    return _find(layer_name).run(x, topk_ids, topk_weights)


@moe_layer.register_fake
def _(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, layer_name: str) -> Tensor:
    del topk_ids, topk_weights, layer_name
    return torch.empty_like(x)
