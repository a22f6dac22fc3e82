"""A whole checkpoint as plain numbers, by the independent readings: the model that its quantised file means.

Every tensor of a module that is not quantised stays as it is; a quantised projection becomes one `weight`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from formats.fixtures import BY_FOLDER
from formats.readings import msmodelslim
from formats.readings.layer import LAYERS, LINEARS
from formats.readings.numbers import F64
from formats.readings.store import Raw, Store
from safetensors.torch import save_file

PLAIN = {"BF16", "F16", "F32"}
MIXED = {"qwen3_moe__llmcompressor__mixed_attnW8A8_expW4A8": "compressed-tensors-w8a8"}
"""Folders whose linears outside of the experts have another format than these."""


def quantised_modules(store: Store) -> list[str]:
    """Prefixes, with the last dot, of the modules that have a tensor of codes."""
    modules: dict[str, set[str]] = {}
    for name in store.tensors:
        prefix, _, part = name.rpartition(".")
        modules.setdefault(f"{prefix}.", set()).add(part)
    return [prefix for prefix, parts in modules.items() if any(store.raw(prefix + p).dtype not in PLAIN for p in parts)]


def values_of(store: Store, folder: str, prefix: str) -> F64:
    """float64 [N, K] of one projection of a fixture.

    Args:
        store: of the folder.
        folder: its name in `formats.fixtures`.
        prefix: of the projection, with the last dot.
    """
    if store.description:
        return msmodelslim.linear(store, prefix).values
    layout = BY_FOLDER[folder].format
    if ".experts." not in prefix:
        layout = MIXED.get(folder, layout)
    return LINEARS[layout](store, prefix).values


def tensor_of(raw: Raw) -> torch.Tensor:
    """A plain tensor with its bits."""
    if raw.dtype == "BF16":
        return torch.from_numpy(raw.bits.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(raw.bits.copy())


def bfloat16(values: F64) -> torch.Tensor:
    """Rounded through float32, which holds a code times its scale."""
    return _torch(values).to(torch.bfloat16)


def _torch(values: F64) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def write(source: Path, target: Path, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
    """The dequantised checkpoint of a fixture, in a folder that is made.

    Args:
        source: the fixture.
        target: the folder.
        dtype: of the weights.
        changes: keys of config.json to set.
    """
    store, folder = Store.open(source), source.name.removesuffix("__s0")
    assert BY_FOLDER[folder].format not in LAYERS
    quantised = quantised_modules(store)
    tensors = {
        name: tensor_of(raw).to(dtype)
        for name, raw in store.tensors.items()
        if f"{name.rpartition('.')[0]}." not in quantised or name.endswith(".bias")
    }
    for prefix in quantised:
        tensors[f"{prefix}weight"] = _torch(values_of(store, folder, prefix)).to(dtype)
    target.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / file, target)
    config = {key: value for key, value in store.config.items() if key != "quantization_config"}
    (target / "config.json").write_text(json.dumps(config | changes))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target
