"""Layers without experts as they are built with vllm-ascend's own flag and with ours, from the same checkpoint."""

import os
from typing import Any

import torch
from contract.support import engine
from contract.support.rank import Rank

_PARTS = ("gate_proj", "up_proj", "down_proj")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
SECTIONS: dict[str, dict[str, Any]] = {
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": _INT8 | {"strategy": "channel", "dynamic": False},
                "input_activations": _INT8 | {"strategy": "token", "dynamic": True},
            }
        },
    },
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"},
}
KINDS = {"a3": ("BF16", "W8A8_DYNAMIC", "compressed-tensors"), "950": ("W8A8_MXFP8", "fp8")}
ASKED = (
    "quant_description",
    "enable_fa_quant",
    "enable_c8_quant",
    "enable_indexer_quant",
    "kvcache_quant_layers",
    "c8_quant_layers",
    "indexer_quant_layers",
    "packed_modules_mapping",
)
"""What vllm-ascend's code reads from a quantisation config beyond what vLLM has."""


def run(rank: Rank) -> dict[str, Any]:
    """By kind of checkpoint: how both flags build the layers, and what both configs answer."""
    product = os.environ["VLLM_MEGAMOE_SIMULATED_NPU"].split("@")[0]
    answers: dict[str, Any] = {}
    for kind in KINDS[product]:
        folder = _model(kind).write(rank.own_folder(kind))
        answers[kind] = {}
        for flag in ("theirs", "ours"):
            own = "ascend" if kind.startswith("W") else None
            ours = {"additional_config": {"megamoe": {"requant": "allow"}}} if flag == "ours" else {}
            config = engine.make_config(folder, quantization="megamoe" if flag == "ours" else own, **ours)
            if torch.distributed.is_initialized():
                engine.renew_state(config)
            else:
                engine.start_worker(config, rank.number, rank.meeting_point)
            answers[kind][flag] = {"layers": _layers(config), "answers": _answers(config.quant_config)}
    return answers


def _model(kind: str) -> engine.Model:
    if kind in SECTIONS:
        return engine.Model(changes={"quantization_config": SECTIONS[kind]})
    if kind == "BF16":
        return engine.Model()
    names = [f"model.layers.0.self_attn.{name}" for name in _ATTENTION]
    names += [f"model.layers.0.mlp.experts.{expert}.{name}" for expert in range(8) for name in _PARTS]
    listed = {f"{name}.weight": kind for name in names}
    floats = dict.fromkeys(("model.layers.0.mlp.gate.weight", "model.embed_tokens.weight", "lm_head.weight"), "FLOAT")
    return engine.Model(description={"version": "1.0.0", "model_quant_type": kind} | floats | listed)


def _layers(config: Any) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.linear import QKVParallelLinear, ReplicatedLinear, RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
    from vllm.utils.torch_utils import set_default_torch_dtype

    engine.set_capacity(config)
    own = {"quant_config": config.quant_config}
    if config.quant_config is not None:
        config.quant_config.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    home = "model.layers.0.self_attn"
    with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
        layers = {
            "qkv": QKVParallelLinear(1024, 128, 8, 2, bias=False, prefix=f"{home}.qkv_proj", **own),
            "o": RowParallelLinear(1024, 1024, bias=False, prefix=f"{home}.o_proj", **own),
            "gate": ReplicatedLinear(1024, 8, bias=False, prefix="model.layers.0.mlp.gate", **own),
            "embedding": VocabParallelEmbedding(512, 1024, prefix="model.embed_tokens", **own),
            "head": ParallelLMHead(512, 1024, prefix="lm_head", **own),
        }
    return {name: _described(layer) for name, layer in layers.items()}


def _described(layer: torch.nn.Module) -> dict[str, Any]:
    method: Any = layer.quant_method
    scheme = getattr(method, "quant_method", None)
    return {
        "classes": [f"{type(each).__module__}.{type(each).__qualname__}" for each in (layer, method, scheme)],
        "attributes": sorted(vars(layer)),
        "method": sorted(vars(method)),
        "scheme": sorted(vars(scheme)) if scheme is not None else [],
        "parameters": {name: [str(p.dtype), list(p.shape), sorted(vars(p))] for name, p in layer.named_parameters()},
    }


def _answers(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    found = {name: getattr(config, name, "absent") for name in ASKED}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()} | {
        "get_name": config.get_name(),
        "cache scales": repr(config.get_cache_scale_mapper()),
    }
