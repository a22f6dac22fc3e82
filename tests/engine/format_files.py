"""The quantised fixtures as served models: what transformers makes of their numbers, and damaged copies."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from formats import dequantised
from formats.readings.store import Store
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

SHIFTED = "qwen3_moe__msmodelslim__v0_qwen3-30b-a3b-w8a8"
"""Its norms have a bias, and its attention's integers another one, which a plain Qwen3-MoE has not."""


def log_probabilities(source: Path, target: Path, prompts: list[list[int]]) -> list[Tensor]:
    """float64 [tokens - 1, vocabulary] per prompt: transformers in float32, on the numbers that a fixture means.

    Args:
        source: the fixture.
        target: where the dequantised checkpoint is written.
        prompts: fed token by token.
    """
    from transformers import AutoModelForCausalLM

    shifted = source.name.startswith(SHIFTED)
    changes: dict[str, Any] = {"attention_bias": True} if shifted else {}
    dequantised.write(source, target, torch.float32, **changes)
    if shifted:
        _fold_shifts(source, target)
    model = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return [model(torch.tensor([p])).logits[0, :-1].double().log_softmax(-1) for p in prompts]


def _fold_shifts(source: Path, target: Path) -> None:
    """The same model without biases in norms: W (h + b) + c = W h + (W b + c).

    c is what W8A8 adds: (quant_bias + input_offset * sum of codes) * deq_scale.
    """
    store, folder = Store.open(source), source.name.removesuffix("__s0")
    with safe_open(target / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if not name.endswith("norm.bias")}  # noqa: SIM118
    for name in [name for name in tensors if name.endswith("_proj.weight") and "self_attn" in name]:
        prefix = name.removesuffix("weight")
        codes, steps = store.ints(prefix + "weight"), store.numbers(prefix + "deq_scale")
        whole = store.ints(prefix + "quant_bias") + store.numbers(prefix + "input_offset") * codes.sum(axis=1)
        bias = whole * steps
        if not prefix.endswith("o_proj."):
            shift = store.numbers(prefix.split("self_attn")[0] + "input_layernorm.bias")
            bias = bias + dequantised.values_of(store, folder, prefix) @ shift
        tensors[f"{prefix}bias"] = torch.from_numpy(bias.astype(np.float32))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def experts_moved(source: Path, target: Path) -> Path:
    """A copy in which every routed expert has the numbers of the next one, so that no pair of them is right."""
    config = Store.open(source).config
    count = next(config[key] for key in ("num_experts", "n_routed_experts", "num_local_experts") if key in config)

    def rename(name: str) -> str:
        return re.sub(r"(?<=\.experts\.)\d+", lambda number: str((int(number[0]) + 1) % count), name)

    return _copy(source, target, lambda tensors: {rename(name): tensor for name, tensor in tensors.items()})


def nibbles_exchanged(source: Path, target: Path) -> Path:
    """A copy in which the two numbers of each byte of a routed expert's FP4 or INT4 codes have changed places."""

    def exchange(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found = dict(tensors)
        for name in [name for name, tensor in tensors.items() if is_packed(name, tensor)]:
            octets = tensors[name].view(torch.uint8)
            found[name] = ((octets << 4) | (octets >> 4)).view(tensors[name].dtype)
        # The tool's own check sum would give the damage away before anything is served; its list goes without too.
        return {name: tensor for name, tensor in found.items() if not name.endswith("scale_bias")}

    return _copy(source, target, exchange)


def is_packed(name: str, tensor: Tensor) -> bool:
    """Whether these are codes of a routed expert, two or eight to a number."""
    codes = name.endswith((".weight", ".weight_packed", ".qweight"))
    return codes and ".experts." in name and tensor.dtype in (torch.uint8, torch.int8, torch.int32)


def _copy(source: Path, target: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    shutil.copytree(source, target)
    for place in target.glob("*.safetensors"):
        with safe_open(place, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        changed = change(tensors)
        save_file(changed, place, {"format": "pt"})
    for described in target.glob("quant_model_description*.json"):
        listed = json.loads(described.read_text())
        gone = tensors.keys() - changed.keys()
        described.write_text(json.dumps({name: kind for name, kind in listed.items() if name not in gone}))
    for index in target.glob("*.index.json"):
        index.unlink()
    return target
