"""Writes one checkpoint: config.json, weights under the tool's file names, index, description; and what it means."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.generate.families import Family
from formats.generate.fused import Triple, with_biases
from formats.generate.recipe import Recipe
from safetensors.torch import save_file
from torch import Tensor

from vllm_megamoe.testing.formats.address import Fill, Shape, Spot, planes_needed
from vllm_megamoe.testing.formats.scheme import Scheme

LayerName = int | str


@dataclass(frozen=True)
class Checkpoint:
    """What was written.

    Attributes:
        folder: of the checkpoint.
        layers: MoE layer -> gate, up, down of each routed expert, in order.
        shared: MoE layer -> those of the shared expert, where there is one.
        layouts: MoE layer -> reading of its routed experts.
        drafts: layers that only a draft model loads.
        prefixes: MoE layer -> prefix of its block.
    """

    folder: Path
    recipe: Recipe
    shape: Shape
    planes: int
    layers: Mapping[LayerName, Sequence[Triple]]
    shared: Mapping[LayerName, Triple]
    layouts: Mapping[LayerName, str]
    drafts: tuple[LayerName, ...]
    prefixes: Mapping[LayerName, str]

    @property
    def shared_layout(self) -> str | None:
        """Reading of the shared expert."""
        return self.recipe.shared.layout if self.recipe.shared else None


def generate(recipe: Recipe, folder: Path, shape: Shape | None = None, fill: Fill = "address") -> Checkpoint:
    """Write a checkpoint into a folder that is made for it."""
    shape, family = shape or recipe.shape, recipe.family
    folder.mkdir(parents=True)
    schemes = [recipe.scheme, *recipe.mixed.values(), *filter(None, [recipe.shared, recipe.draft])]
    planes = max(planes_needed(shape, len(s.alphabet.spelling), s.scale_base, s.inputs_per_scale) for s in schemes)
    count = planes + 1 if fill == "address" else 2
    names: list[tuple[LayerName, str, Scheme]] = [
        (family.first + i, family.layer.format(family.first + i), recipe.mixed.get(i, recipe.scheme))
        for i in range(count)
    ]
    if recipe.draft is not None:
        number: LayerName = family.first + count if "{}" in family.draft else family.draft.strip(".")
        names.append((number, family.draft.format(family.first + count), recipe.draft))
    decoder = [name for name, *_ in names if isinstance(name, int)]
    tensors: dict[str, Tensor] = family.beside(shape, decoder)
    types = dict.fromkeys(tensors, "FLOAT")
    written: dict[LayerName, list[Triple]] = {}
    shared: dict[LayerName, Triple] = {}
    prefixes: dict[LayerName, str] = {}
    silent: set[str] = set()
    for ordinal, (layer, before, scheme) in enumerate(names):
        block = before + family.block
        prefixes[layer] = block
        experts = [_triple(scheme, shape, ordinal, planes, expert, fill) for expert in range(shape.experts)]
        made: dict[str, Tensor] = {}
        if recipe.fused is not None:
            made = {block + suffix: tensor for suffix, tensor in recipe.fused(experts).items()}
        else:
            for e, expert in enumerate(experts):
                made |= _named(block + family.expert.format(e), family, expert)
        types |= dict.fromkeys(made, scheme.type)
        if ordinal in recipe.unlisted:
            silent |= set(made)
        written[layer] = with_biases(experts) if recipe.biased else experts
        if recipe.shared is not None:
            shared[layer] = _triple(recipe.shared, shape, ordinal, planes, shape.experts, fill)
            made |= _named(block + family.shared, family, shared[layer])
            types |= dict.fromkeys([n for n in made if n not in types], recipe.shared.type)
        if recipe.more is not None and isinstance(layer, int):
            for name, (tensor, kind) in recipe.more(layer).items():
                made[name], types[name] = tensor, kind
        tensors |= made
    checkpoint = Checkpoint(
        folder,
        recipe,
        shape,
        planes,
        written,
        shared,
        {layer: scheme.layout for layer, _, scheme in names},
        tuple(layer for layer, *_ in names[count:]),
        prefixes,
    )
    if recipe.layout:
        checkpoint = Checkpoint(**{**vars(checkpoint), "layouts": dict.fromkeys(written, recipe.layout)})
    _write(
        recipe,
        folder,
        tensors,
        {n: t for n, t in types.items() if n not in silent},
        family.config(shape, count, int(recipe.draft is not None)),
    )
    return checkpoint


def _triple(scheme: Scheme, shape: Shape, ordinal: int, planes: int, expert: int, fill: Fill) -> Triple:
    gate, up, down = (scheme.write(Spot(shape, ordinal, planes, expert, p, fill)) for p in range(3))
    return gate, up, down


def _named(prefix: str, family: Family, expert: Triple) -> dict[str, Tensor]:
    return {
        f"{prefix}{name}.{suffix}": tensor
        for name, one in zip(family.names, expert, strict=True)
        for suffix, tensor in one.tensors.items()
    }


def _write(
    recipe: Recipe, folder: Path, tensors: dict[str, Tensor], types: dict[str, str], config: dict[str, Any]
) -> None:
    section = dict(recipe.section) if recipe.section is not None else None
    if section is not None:
        config["quantization_config"] = section
    _json(folder / "config.json", config)
    for name, content in recipe.side.items():
        _json(folder / name, content)
    stem, files = ("quant_model_weights", 2) if recipe.tool == "msmodelslim" else ("model", 1)
    files = 2 if recipe.tool == "hf-sharded" else files
    if recipe.tool == "msmodelslim":
        head = {
            "version": recipe.scheme.version,
            "group_size": recipe.scheme.group_size,
            "metadata": {},
            "optional": {},
            "model_quant_type": recipe.scheme.type,
            **recipe.description,
        }
        head = {key: value for key, value in head.items() if value != ""}
        _json(folder / "quant_model_description.json", types | head)
    save_shards(folder, stem, files, tensors)


def save_shards(folder: Path, stem: str, files: int, tensors: Mapping[str, Tensor]) -> None:
    """Save tensors, neighbours in different files; an index when there is more than one file."""
    if files == 1:
        save_file(dict(tensors), folder / f"{stem}.safetensors", {"format": "pt"})
        return
    where: dict[str, str] = {}
    for part in range(files):
        name = f"{stem}-{part + 1:05}-of-{files:05}.safetensors"
        own = {key: tensor for i, (key, tensor) in enumerate(sorted(tensors.items())) if i % files == part}
        save_file(own, folder / name, {"format": "pt"})
        where |= dict.fromkeys(own, name)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    _json(folder / f"{stem}.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def _json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2))
