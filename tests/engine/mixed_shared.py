"""A DeepSeek-V3 whose routed experts are MXFP4 and whose shared ones are MXFP8, as msModelSlim writes them."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from cli import pairs
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from vllm_megamoe.testing.checkpoints import write_checkpoint

SIZES = {"hidden_size": 1024, "num_hidden_layers": 2, "moe_intermediate_size": 256, "num_nextn_predict_layers": 0}
KINDS = {"routed": "W4A8_MXFP", "shared": "W8A8_MXFP8"}


def write(folder: Path, prompts: list[list[int]]) -> list[Tensor]:
    """Write it, and return the log-probabilities that transformers computes in float32 from the numbers in it.

    Returns:
        For each prompt float64 [tokens - 1, vocabulary].
    """
    plain, target = folder.with_name("plain"), folder
    write_checkpoint("deepseek_v3", "bf16", plain, **SIZES)
    tensors = _named({name: w for file in plain.glob("*.safetensors") for name, w in load_file(file).items()})
    quantised, types, numbers = {}, {}, {}
    for name, w in tensors.items():
        found = re.search(r"mlp\.(shared_experts|experts\.\d+)\.\w+\.weight$", name)
        kind = "" if found is None else KINDS["shared" if found[1] == "shared_experts" else "routed"]
        home, _, last = name.rpartition(".")
        parts = _quantised(w, kind) if kind else {last: w}
        quantised |= {f"{home}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        types |= {f"{home}.{part}": kind or "FLOAT" for part in parts}
        numbers[name] = _numbers(parts, kind) if kind else w.float()
    target.mkdir()
    config = json.loads((plain / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config))
    (target / "quant_model_description.json").write_text(json.dumps({**types, "version": "1.0.0", "group_size": 32}))
    save_file(quantised, target / "quant_model_weights.safetensors", {"format": "pt"})
    for file in plain.glob("*.safetensors*"):
        file.unlink()
    save_file(numbers, plain / "model.safetensors", {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(str(plain), dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0, :-1].double().log_softmax(-1) for prompt in prompts]


def _named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every expert by itself, whichever way transformers has saved them."""
    found: dict[str, Tensor] = {}
    for name, w in tensors.items():
        block, fused, last = name.rpartition(".experts.")
        if fused and last in ("gate_up_proj", "down_proj"):
            for number, one in enumerate(w):
                names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
                for part, matrix in zip(names, one.chunk(len(names)), strict=True):
                    found[f"{block}.experts.{number}.{part}.weight"] = matrix.contiguous()
        else:
            found[name] = w
    return found


def _quantised(w: Tensor, kind: str) -> dict[str, Tensor]:
    parts = (pairs.mxfp4 if kind == KINDS["routed"] else pairs.mxfp8)(w.float().numpy())
    return {name.replace("_packed", ""): tensor for name, tensor in parts.items()}


def _numbers(parts: dict[str, Tensor], kind: str) -> Tensor:
    codes = parts["weight"]
    if kind == KINDS["routed"]:
        nibbles = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
        values = pairs._value(nibbles, torch.uint8)
    else:
        values = codes.float()
    scale = np.repeat(np.exp2(parts["weight_scale"].numpy().astype(np.float32) - 127), 32, axis=1)
    return values * torch.from_numpy(scale)
