"""Tools of the malformed variants: change tensors, headers, index and description of a checkpoint that lies on disk."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.generate.checkpoint import Checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = (
    "weight",
    "weight_packed",
    "qweight",
    "experts.gate_up_proj",
    "experts.gate_up_proj_blocks",
    "up_proj.weight",
)
SCALES = (
    "weight_scale",
    "weight_scale_inv",
    "scale",
    "scales",
    "experts.gate_up_proj_scales",
    "up_proj.weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
)


@dataclass(frozen=True)
class Place:
    """The linear that a fault hits: up of expert 1 (never the first one) in the second MoE layer.

    Attributes:
        checkpoint: as it was written.
        prefix: of the linear's tensors, or of the block where experts lie in one tensor.
        suffixes: of its tensors.
    """

    checkpoint: Checkpoint
    prefix: str
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Place":
        """The place in a checkpoint."""
        layer = list(checkpoint.layers)[1]
        block, family, fused = checkpoint.prefixes[layer], checkpoint.recipe.family, checkpoint.recipe.fused
        if fused is not None:
            return cls(checkpoint, block, tuple(fused(checkpoint.layers[layer])))
        prefix = f"{block}{family.expert.format(1)}{family.names[1]}."
        return cls(checkpoint, prefix, tuple(checkpoint.layers[layer][1][1].tensors))

    @property
    def weight(self) -> str:
        """Name of its codes."""
        return self.prefix + next(suffix for suffix in WEIGHTS if suffix in self.suffixes)

    @property
    def scale(self) -> str | None:
        """Name of its scale, if it has one."""
        found = [suffix for suffix in SCALES if suffix in self.suffixes]
        return self.prefix + found[0] if found else None

    def named(self, suffix: str) -> str:
        """Name of one of its tensors."""
        assert suffix in self.suffixes
        return self.prefix + suffix

    @property
    def folder(self) -> Path:
        """Of the checkpoint."""
        return self.checkpoint.folder

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return next(file for file in sorted(self.folder.glob("*.safetensors")) if name in header_of(file))

    def tensor(self, name: str) -> Tensor:
        """A tensor."""
        return load_file(self.file_of(name))[name]

    def change(self, name: str, change: Callable[[Tensor], Tensor]) -> None:
        """Replace a tensor where it lies."""
        file = self.file_of(name)
        tensors = load_file(file)
        tensors[name] = change(tensors[name].clone()).contiguous()
        save_file(tensors, file, {"format": "pt"})

    def add(self, name: str, tensor: Tensor, beside: str) -> None:
        """Add a tensor to the file of another, and to the index."""
        file = self.file_of(beside)
        save_file({**load_file(file), name: tensor.contiguous()}, file, {"format": "pt"})
        self.change_index(lambda where: where | {name: file.name})

    def remove(self, name: str) -> None:
        """Take a tensor out of its file and out of the index."""
        file = self.file_of(name)
        save_file({key: tensor for key, tensor in load_file(file).items() if key != name}, file, {"format": "pt"})
        self.change_index(lambda where: {key: value for key, value in where.items() if key != name})

    @property
    def index(self) -> Path | None:
        """The index file, if the tool wrote one."""
        return next(iter(self.folder.glob("*.index.json")), None)

    @property
    def indexed(self) -> list[str]:
        """Names that the index lists."""
        assert self.index is not None
        return list(json.loads(self.index.read_text())["weight_map"])

    def change_index(self, change: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        """Change the map of names to files, if there is an index."""
        if self.index is not None:
            content = json.loads(self.index.read_text())
            content["weight_map"] = change(content["weight_map"])
            self.index.write_text(json.dumps(content))

    @property
    def description(self) -> Path:
        """msModelSlim's description."""
        return self.folder / "quant_model_description.json"

    def change_json(self, file: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Change a JSON file."""
        file.write_text(json.dumps(change(json.loads(file.read_text())), indent=2))


def header_of(file: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file."""
    data = file.read_bytes()
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def write_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the header of a file, its data untouched."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
