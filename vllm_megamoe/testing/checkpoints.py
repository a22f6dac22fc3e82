"""Tiny checkpoints that vLLM serves, in every family and format, with the numbers that they mean.

    checkpoint = write_checkpoint("deepseek_v3", "msmodelslim-w8a8", folder)
    w13, w2 = checkpoint.experts(1)            # float64, what its codes and scales mean
    checkpoint.logprobs(prompts)               # what transformers computes from exactly these numbers, in float32

The model has a family's real class and config structure (`tiny_models`), random BF16 weights and a tokenizer. In a
quantised format the routed experts are written as the named tool writes them; all other layers stay BF16, and the
tool's section or description says so. Codes and scales are drawn: nothing is rounded, so the numbers are known exactly.
"""

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.testing.formats.address import Shape, Spot
from vllm_megamoe.testing.formats.scheme import Scheme, Written
from vllm_megamoe.testing.formats.table import FORMATS, Format
from vllm_megamoe.testing.tiny_models import COMMON, TINY_MODELS, TinyModel

ROUTER_GAIN = 3.0
"""Router logits are this far apart (standard deviation), so that no two experts come near a tie for the top-k."""

_EXPERT = re.compile(r"(?P<block>.*\.(?P<layer>\d+)\..*experts)\.(?P<number>\d+)\.(?P<name>\w+)\.weight")
_PROJECTIONS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}


@dataclass(frozen=True)
class TinyCheckpoint(os.PathLike[str]):
    """A checkpoint in a folder; takes the folder's place wherever a path is expected.

    Attributes:
        folder: with config.json, safetensors and a tokenizer.
        family: of TINY_MODELS.
        format: of FORMATS.
        layers: numbers of the layers with routed experts.
        shape: hidden, width and number of the routed experts.
    """

    folder: Path
    family: str
    format: str
    layers: tuple[int, ...]
    shape: Shape
    _names: Mapping[str, tuple[int, int, int]] = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __str__(self) -> str:
        return str(self.folder)

    def experts(self, layer: int) -> tuple[Tensor, Tensor]:
        """The numbers of a layer's routed experts.

        Returns:
            w13 float64 [E, 2I, H], gate rows first, and w2 float64 [E, H, I].

        Raises:
            ConfigError: the layer has none.
        """
        found: dict[tuple[int, int], Tensor] = {}
        for name, (its, expert, projection) in self._names.items():
            if its == layer:
                found[expert, projection] = self._values(name, layer, expert, projection)
        if not found:
            raise ConfigError(f"layer {layer}: no experts in {self.folder}; expected one of {list(self.layers)}.")
        every = range(self.shape.experts)
        gate_up = [torch.cat([found[e, 0], found[e, 1]]) for e in every]
        return torch.stack(gate_up), torch.stack([found[e, 2] for e in every])

    def logprobs(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """What transformers computes in float32 from exactly these numbers.

        Returns:
            float32 [tokens - 1, vocabulary] for each prompt: after each of its tokens but the last.
        """
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as name:
            plain = Path(name) / "plain"
            self._write_plain(plain)
            model = AutoModelForCausalLM.from_pretrained(str(plain), dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            return [model(torch.tensor([list(prompt)])).logits[0, :-1].log_softmax(-1) for prompt in prompts]

    def _values(self, name: str, layer: int, expert: int, projection: int) -> Tensor:
        scheme = FORMATS[self.format].scheme
        if scheme is None:
            return _tensors(self.folder, [f"{name}.weight"])[f"{name}.weight"].double()
        return torch.from_numpy(_written(scheme, self, layer, expert, projection).values)

    def _write_plain(self, folder: Path) -> None:
        folder.mkdir()
        config = json.loads((self.folder / "config.json").read_text())
        config.pop("quantization_config", None)
        (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
        experts = tuple(f"{name}." for name in self._names)
        rest = [name for name in _names(self.folder) if not name.startswith(experts)]
        tensors = {name: tensor.float() for name, tensor in _tensors(self.folder, rest).items()}
        for name, place in self._names.items():
            tensors[f"{name}.weight"] = self._values(name, *place).float().contiguous()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def write_checkpoint(family: str, form: str, folder: Path, *, seed: int = 5, **changes: Any) -> TinyCheckpoint:
    """Write a tiny checkpoint of a family in a format.

    Args:
        family: a key of TINY_MODELS, such as `qwen3_moe`.
        form: a key of FORMATS, such as `bf16` or `msmodelslim-w8a8`.
        folder: made for it; it must not exist.
        seed: of the random weights.
        changes: keys of the family's config, such as `num_experts=16`.

    Raises:
        ConfigError: no such family or format.
    """
    for what, name, known in (("family", family, TINY_MODELS), ("format", form, FORMATS)):
        if name not in known:
            raise ConfigError(f"{what} {name!r}; expected one of {', '.join(known)}.")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    sizes = _write_model(TINY_MODELS[family], part, seed, changes)
    places = {}
    for name in _names(part):
        if found := _EXPERT.fullmatch(name):
            place = int(found["layer"]), int(found["number"]), _PROJECTIONS[found["name"]]
            places[name.removesuffix(".weight")] = place
    layers = tuple(sorted({layer for layer, *_ in places.values()}))
    checkpoint = TinyCheckpoint(part, family, form, layers, sizes, places)
    if FORMATS[form].scheme is not None:
        _quantise(checkpoint, FORMATS[form])
    part.rename(folder)
    return TinyCheckpoint(folder, family, form, layers, sizes, places)


def _write_model(model: TinyModel, folder: Path, seed: int, changes: Mapping[str, Any]) -> Shape:
    from transformers import AutoConfig, AutoModelForCausalLM

    from vllm_megamoe.testing.tokenizer import make_tokenizer

    config = AutoConfig.for_model(model.model_type, **(COMMON | model.settings | dict(changes)))
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fill(made, seed)
    made.save_pretrained(folder)
    make_tokenizer(COMMON["max_position_embeddings"]).save_pretrained(folder)
    read = config.to_dict()
    count = next(
        read[k] for k in ("n_routed_experts", "num_local_experts", "moe_num_experts", "num_experts") if k in read
    )
    return Shape(config.hidden_size, read.get("moe_intermediate_size") or read["intermediate_size"], count)


def fill(model: Any, seed: int) -> None:
    """Overwrite every tensor of a transformers model; the same seed gives the same values."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(_random(name, tensor.shape, random))


def _random(name: str, shape: torch.Size, random: torch.Generator) -> Tensor:
    if "norm" in name.split(".")[-2]:
        return 1.0 + 0.1 * torch.randn(shape, generator=random)
    if "moe_statics" in name:
        # vLLM's router for CPUs leaves this bias out where there are no expert groups (Ernie), flag or no flag.
        return torch.zeros(shape)
    if len(shape) < 2 or name.endswith("e_score_correction_bias"):
        return 0.1 * torch.randn(shape, generator=random)
    values = torch.randn(shape, generator=random)
    if name.endswith("embed_tokens.weight"):
        return values
    values /= math.sqrt(shape[-1])
    if name.endswith((".gate.weight", ".router.weight")):
        return ROUTER_GAIN * values
    # Every expert, row and column has a scale of its own, so that one in the wrong place shows.
    for direction in range(len(shape)):
        scales = [size if d == direction else 1 for d, size in enumerate(shape)]
        values *= 0.5 + torch.rand(scales, generator=random)
    return values


def _quantise(checkpoint: TinyCheckpoint, form: Format) -> None:
    """Put the experts of a BF16 checkpoint into a format, in its folder."""
    scheme, folder, experts = form.scheme, checkpoint.folder, checkpoint._names
    assert scheme is not None
    rest = [name for name in _names(folder) if name.removesuffix(".weight") not in experts]
    tensors = _tensors(folder, rest)
    types = dict.fromkeys(rest, "FLOAT")
    for name, place in experts.items():
        made = {f"{name}.{suffix}": t for suffix, t in _written(scheme, checkpoint, *place).tensors.items()}
        tensors |= made
        types |= dict.fromkeys(made, scheme.type)
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]:
        file.unlink()
    left = [name.removesuffix(".weight") for name in rest if tensors[name].ndim == 2 and "norm" not in name]
    config = json.loads((folder / "config.json").read_text())
    if form.section is None:
        head = {"version": scheme.version, "model_quant_type": scheme.type, "group_size": scheme.group_size}
        (folder / "quant_model_description.json").write_text(json.dumps(types | head, indent=1))
    else:
        config["quantization_config"] = form.section(left)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    stem = "quant_model_weights" if form.section is None else "model"
    save_file(tensors, folder / f"{stem}.safetensors", {"format": "pt"})


def _written(scheme: Scheme, checkpoint: TinyCheckpoint, layer: int, expert: int, projection: int) -> Written:
    ordinal = checkpoint.layers.index(layer)
    return scheme.write(Spot(checkpoint.shape, ordinal, 0, expert, projection, "noise"))


def _names(folder: Path) -> Iterator[str]:
    for place in sorted(folder.glob("*.safetensors")):
        with safe_open(place, "pt") as file:
            yield from file.keys()


def _tensors(folder: Path, names: Sequence[str]) -> dict[str, Tensor]:
    asked = set(names)
    found: dict[str, Tensor] = {}
    for place in sorted(folder.glob("*.safetensors")):
        with safe_open(place, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if name in asked}  # noqa: SIM118
    return found
