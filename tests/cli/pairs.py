"""A BF16 checkpoint and what a plain quantiser makes of it, written here from the formats' rules alone.

Weights are normal times uneven factors for each row and each 32 columns, so that a wrongly applied scale shows.
"""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from formats.generate.families import QWEN3
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_megamoe.testing.formats import sections
from vllm_megamoe.testing.formats.address import Shape

F32 = NDArray[np.float32]
SHAPE = Shape(128, 64, 4)
LAYERS = 2
NAMES = ("gate_proj", "up_proj", "down_proj")


def originals() -> dict[str, Tensor]:
    """Projection's name -> bfloat16 [N, K]."""
    random = np.random.default_rng(5)
    made = {}
    for layer in range(LAYERS):
        for expert in range(SHAPE.experts):
            for place, name in enumerate(NAMES):
                n, k = SHAPE.size(place)
                values = random.standard_normal((n, k)) * np.exp(random.normal(0, 0.5, (n, 1)))
                values *= np.repeat(np.exp(random.normal(0, 0.3, (1, k // 32))), 32, axis=1) * k**-0.5
                made[f"model.layers.{layer}.mlp.experts.{expert}.{name}"] = torch.from_numpy(values).bfloat16()
    return made


def w8a8(w: F32) -> dict[str, Tensor]:
    """msModelSlim W8A8_DYNAMIC: scale amax / 127 of each row."""
    scale = np.abs(w).max(axis=1, keepdims=True) / 127
    codes = np.rint(w / scale).astype(np.int8)
    return {"weight": torch.from_numpy(codes), "weight_scale": torch.from_numpy(scale.astype(np.float32))}


def w4a8(w: F32) -> dict[str, Tensor]:
    """msModelSlim W4A8_DYNAMIC 1.0.0: channels 2i and 2i + 1 in a byte, the even one low, two's complement.

    Without scale_bias: where it stands, it is a checksum of its own.
    """
    scale = (np.abs(w).max(axis=1, keepdims=True) / 7).astype(np.float32)
    codes = np.rint(w / scale).astype(np.int8)
    packed = (codes[0::2] & 15) | (codes[1::2] << 4)
    return {"weight": torch.from_numpy(packed.astype(np.int8)), "weight_scale": torch.from_numpy(scale)}


def _groups(w: F32, emax: int) -> tuple[F32, NDArray[np.uint8]]:
    """w over its groups' scales, and the scales' bytes: 2^(floor(log2 amax) - emax)."""
    grouped = w.reshape(len(w), -1, 32)
    exponent = np.floor(np.log2(np.abs(grouped).max(axis=2))) - emax
    return (grouped / 2.0 ** exponent[:, :, None]).reshape(w.shape), (exponent + 127).astype(np.uint8)


def mxfp8(w: F32) -> dict[str, Tensor]:
    """compressed-tensors MXFP8."""
    scaled, scales = _groups(w, 8)
    codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return {"weight": torch.from_numpy(codes).view(torch.float8_e4m3fn), "weight_scale": torch.from_numpy(scales)}


def mxfp4(w: F32) -> dict[str, Tensor]:
    """compressed-tensors MXFP4: even inputs in the low nibble."""
    scaled, scales = _groups(w, 2)
    codes = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return {"weight_packed": torch.from_numpy(packed), "weight_scale": torch.from_numpy(scales)}


QUANTISERS: dict[str, Callable[[F32], dict[str, Tensor]]] = {
    "W8A8_DYNAMIC": w8a8,
    "W4A8_DYNAMIC": w4a8,
    "MXFP8": mxfp8,
    "MXFP4": mxfp4,
}
SECTIONS = {"MXFP8": sections.CT_MXFP8, "MXFP4": sections.CT_MXFP4}
USE_CASES = {"W8A8_DYNAMIC": "a8w8-int", "W4A8_DYNAMIC": "a8w4-int", "MXFP8": "a8w8-fp", "MXFP4": "a8w4-fp"}
"""Kind -> the use case that holds it exactly."""


def write(folder: Path, kind: str = "") -> Path:
    """The original, or what a quantiser makes of it."""
    folder.mkdir(parents=True)
    tensors = QWEN3.beside(SHAPE, list(range(LAYERS)))
    types = dict.fromkeys(tensors, "FLOAT")
    for name, w in originals().items():
        parts = QUANTISERS[kind](w.float().numpy()) if kind else {"weight": w}
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        types |= dict.fromkeys((f"{name}.{part}" for part in parts), kind)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = QWEN3.config(SHAPE, LAYERS, 0)
    if kind in SECTIONS:
        config["quantization_config"] = dict(SECTIONS[kind])
    elif kind:
        (folder / "quant_model_description.json").write_text(json.dumps({**types, "version": "1.0.0"}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def damage(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """Change tensors where they lie."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
    return folder


PLACE = "model.layers.1.mlp.experts."


def swap_experts(tensors: dict[str, Tensor]) -> None:
    """Experts 1 and 2 of layer 1."""
    for name in [name for name in tensors if name.startswith(f"{PLACE}1.")]:
        other = name.replace(f"{PLACE}1.", f"{PLACE}2.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def swap_nibbles(tensors: dict[str, Tensor]) -> None:
    """Of one byte alone, whose nibbles differ most; the whole row's error hardly shows it."""
    weight = next(tensors[n] for n in (f"{PLACE}2.up_proj.weight", f"{PLACE}2.up_proj.weight_packed") if n in tensors)
    codes = weight.view(torch.uint8).reshape(-1)
    low, high = _value(codes & 15, weight.dtype), _value(codes >> 4, weight.dtype)
    at = int((low - high).abs().argmax())
    codes[at] = (codes[at] >> 4) | (codes[at] << 4)


def _value(nibble: Tensor, carrier: torch.dtype) -> Tensor:
    if carrier == torch.int8:
        return ((nibble.int() ^ 8) - 8).float()
    return torch.from_numpy(nibble.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))


def shift_scales(tensors: dict[str, Tensor]) -> None:
    """Each row of one projection gets the scale of the row before."""
    name = f"{PLACE}3.down_proj.weight_scale"
    tensors[name] = tensors[name].roll(1, dims=0)
