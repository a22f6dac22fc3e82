"""Variants of the test checkpoint that no tool of the shared fixtures wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")

INT8_LINEARS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*mlp.experts.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}


def with_int8_attention(source: Path, folder: Path) -> Path:
    """compressed-tensors: attention in int8 per output channel, the experts in `ignore`, so BF16."""
    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as reader:
            tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        for name in [n for n in tensors if n.endswith(".weight") and n.split(".")[-2] in ATTENTION]:
            weight = tensors[name].float()
            scale = (weight.abs().amax(dim=1, keepdim=True) / 127).to(torch.bfloat16)
            tensors[name] = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}_scale"] = scale
        save_file(tensors, file, {"format": "pt"})
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    return _set_config(folder, quantization_config=INT8_LINEARS)


def named_megamoe(source: Path, folder: Path) -> Path:
    """BF16 experts in a checkpoint whose config says `quant_method: megamoe`."""
    shutil.copytree(source, folder)
    return _set_config(folder, quantization_config={"quant_method": "megamoe"})


def _set_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder
