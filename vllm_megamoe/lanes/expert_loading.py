"""vLLM's loaders and the stream of a layer's experts: each tensor goes from the one to the other.

A model's loader looks up a parameter by name (`w13_weight`, `w2_weight_scale`, ...) and calls its `weight_loader` with
one tensor of one expert. The parameters here hold no numbers, so nothing is allocated for a layer before its experts
come; the loader hands on views of the checkpoint's files, and only tensors of this rank's experts are ever read.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from vllm_megamoe.checkpoint.stored.part import Stored
from vllm_megamoe.checkpoint.stream import SHARDS, ExpertStream, Shard
from vllm_megamoe.errors import ConfigError

_STEMS: dict[str, str] = {"w1": "w13", "w2": "w2", "w3": "w13"}

_ALIASES = {"scale": ("weight_scale", "weight_scale_inv")}
"""Parts that a model of vLLM's renames before it looks for the parameter (DeepSeek-V4: `w1.scale`)."""

_DBRX: dict[str, Shard] = {"w1": "w1", "v1": "w3", "w2": "w2"}
"""DBRX's tensors, each of all experts (vLLM 0.32, models/dbrx.py)."""


class Numberless(torch.nn.Parameter):
    """A parameter that holds no numbers and takes tensors in its loader.

    vLLM's reload exchanges the loaders of all parameters for ones that keep tensors until a module is whole, which it
    measures by the parameters' sizes. These have none, and hand on what is whole by themselves: their loader stays.

    Args:
        loader: a method of the module that the parameter belongs to: vLLM keeps copies of parameters, and cuts such a
            reference out of them.
        part: name within the format.
    """

    part: str
    _loader: MethodType

    def __new__(cls, loader: MethodType, part: str) -> "Numberless":
        made: Numberless = super().__new__(cls, torch.empty(0, dtype=torch.uint8), requires_grad=False)
        made.part = part
        made._loader = loader
        return made

    def __init__(self, loader: MethodType, part: str) -> None:
        del loader, part
        super().__init__()

    @property
    def weight_loader(self) -> MethodType:
        return self._loader

    @weight_loader.setter
    def weight_loader(self, loader: Any) -> None:
        del loader


def register_parts(layer: Any, stored: Stored) -> None:
    """Give a layer a parameter for each part of its format, under the names that vLLM's loaders look for."""
    for stem in sorted(set(_STEMS.values())):
        for part in stored.parts:
            for name in (part.name, *_ALIASES.get(part.name, ())):
                layer.register_parameter(f"{stem}_{name}", Numberless(MethodType(take, layer), part.name))


def own_experts(layer: Any) -> list[int]:
    """Global ids of the experts of this rank, in the order of its slots."""
    slots = {e: int(layer._map_global_expert_id_to_local_expert_id(e)) for e in range(layer.global_num_experts)}
    return sorted((e for e, slot in slots.items() if slot >= 0), key=slots.__getitem__)


def expert_name(layer: Any) -> Callable[[int, Shard], str]:
    """The checkpoint's name of a projection, by expert and vLLM's name."""
    names = (layer.ckpt_gate_proj_name, layer.ckpt_down_proj_name, layer.ckpt_up_proj_name)
    projections = dict(zip(SHARDS, names, strict=True))
    return lambda expert, shard: f"{layer.layer_name}.{expert}.{projections[shard]}"


def take(
    layer: Any,
    param: Numberless,
    loaded_weight: Tensor,
    weight_name: str,
    shard_id: str,
    expert_id: int | None = None,
    return_success: bool = False,
) -> bool | None:
    """A weight loader of vLLM's for parts of experts.

    Args:
        layer: the RoutedExperts.
        param: the part.
        loaded_weight: one projection's tensor of one expert, or of consecutive ones in 3-D (Llama 4).
        weight_name: the parameter's, or the checkpoint's name.
        shard_id: w1 (gate), w2 (down) or w3 (up).
        expert_id: global id, of the first expert in 3-D; None from DBRX, whose matrices lie one below the other.
        return_success: whether the caller wants to know.

    Returns:
        Whether this rank has such an expert, None where nobody asks.

    Raises:
        ConfigError: a model hands over its experts in a way that is not known here.
        CheckpointError: see ExpertStream.take.
    """
    stream: ExpertStream = layer.mega_moe_experts
    tensors = [loaded_weight]
    shard = next((known for known in SHARDS if known == shard_id), None)
    if expert_id is None:
        found = _DBRX.get(weight_name.rpartition(".")[2]) if param.part == "weight" else None
        if found is not None:
            shard, expert_id = found, 0
            rows = loaded_weight.view(layer.global_num_experts, -1, layer.hidden_size)
            tensors = list(rows.transpose(1, 2) if found == "w2" else rows)
    elif loaded_weight.dim() == 3 and not stream.one_expert_each:
        tensors = list(loaded_weight)
    if shard is None or expert_id is None:
        raise ConfigError(
            f"{layer.layer_name}: the model loads {weight_name} {list(loaded_weight.shape)} as {shard_id!r} of expert "
            f"{expert_id}; expected w1, w2 or w3 of a numbered expert. Report this model."
        )
    taken = [stream.take(shard, param.part, expert_id + i, tensor) for i, tensor in enumerate(tensors)]
    return any(taken) if return_success else None
